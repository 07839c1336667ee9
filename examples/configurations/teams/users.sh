#!/bin/sh
# Makes users with random passwords. NAME.password is for a user's clients, users.toml for the routers.
set -eu
umask 077
for name in "$@"; do
    openssl rand -base64 18 > "$name.password"
    amqpmesh user add "$name" --password-file "$name.password"
done
