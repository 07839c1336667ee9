#!/bin/sh
# Make certificates for a router and for a client, in the current folder. If the folder has no authority, make one, too.
#   certificates.sh HOST... -- CLIENT     the router's host names, and the client's user name
set -eu

hosts="" first="$1"
while [ "$1" != "--" ]; do
    hosts="$hosts${hosts:+,}DNS:$1"
    shift
done
client="$2"

new_key() { # NAME: the key has no passphrase, because a daemon cannot ask for one
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key"
    chmod 600 "$1.key"
}

sign() { # NAME: OpenSSL also prints a line on success; show only failures
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
