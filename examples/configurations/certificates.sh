#!/bin/sh
# Makes, in the folder it is run in, an authority, if none is there, and certificates for a router and for a client.
#   certificates.sh HOST... -- CLIENT     the names that clients call the router by, and the user that a client is
set -eu

hosts="" first="$1"
while [ "$1" != "--" ]; do
    hosts="$hosts${hosts:+,}DNS:$1"
    shift
done
client="$2"

new_key() { # NAME: no password protects it, since a daemon has nobody to ask
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"
    chmod 600 "$1.key"
}

sign() { # NAME: OpenSSL tells of success, too; only what fails is shown
    said=$(openssl x509 -req -in "$1.csr" -CA ca.pem -CAkey ca.key -copy_extensions copy -days 365 \
        -out "$1.pem" 2>&1) || { echo "$said" >&2; exit 1; }
    rm "$1.csr"
}

if [ ! -e ca.key ]; then
    new_key ca
    openssl req -x509 -new -key ca.key -days 3650 -subj "/CN=Example authority" \
        -addext "keyUsage=critical,keyCertSign,cRLSign" -out ca.pem
fi

new_key router
openssl req -new -key router.key -subj "/CN=$first" -addext "subjectAltName=$hosts" \
    -addext "extendedKeyUsage=serverAuth" -out router.csr
sign router

new_key "$client"
openssl req -new -key "$client.key" -subj "/CN=$client" -addext "extendedKeyUsage=clientAuth" -out "$client.csr"
sign "$client"
