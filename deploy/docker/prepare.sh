#!/bin/sh
# Make what compose.yaml mounts, in a directory (by default the one of this script): secrets/ with an authority, one
# certificate with the names of all services, a token for each process and for people, and the file of identities, which
# knows hashes only; and data/, the directories of etcd and of the masters. Needs openssl and holdfast.
set -eu
umask 077
cd "${1:-$(dirname "$0")}"
[ ! -e secrets ] || { echo "there are secrets already in $PWD/secrets; nothing was changed" >&2; exit 1; }
mkdir -p secrets data/etcd data/master-1 data/master-2
cd secrets
openssl req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=holdfast-authority -keyout ca.key -out ca.pem 2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj /CN=holdfast -keyout server.key -out server.csr 2>/dev/null
printf 'subjectAltName=DNS:master-1,DNS:master-2,DNS:node-1,DNS:node-2,DNS:etcd,DNS:localhost,IP:127.0.0.1' > names
openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 365 -extfile names -out server.pem 2>/dev/null
rm server.csr names
new() { holdfast token new "$1" --role "$2" --identities identities.toml > "$1.token"; }
new master-1 master
new master-2 master
new node-1 node
new node-2 node
new operator operator
new prometheus reader
new app writer
echo "secrets are in $PWD; take ca.key away from this machine"
