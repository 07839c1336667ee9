// SCRAM (RFC 5802, RFC 7677) as a mechanism of rhea's SASL client, which has none of its own.
'use strict';

const crypto = require('node:crypto');

const xor = (a, b) => Buffer.from(a.map((octet, i) => octet ^ b[i]));

function scramClient(mechanism, user, password) {
    const [hash, length] = {
        'SCRAM-SHA-1': ['sha1', 20],
        'SCRAM-SHA-256': ['sha256', 32],
        'SCRAM-SHA-512': ['sha512', 64],
    }[mechanism];
    const hmac = (key, text) => crypto.createHmac(hash, key).update(text).digest();
    const nonce = crypto.randomBytes(18).toString('base64');
    const name = user.replace(/=/g, '=3D').replace(/,/g, '=2C');
    const first = `n=${name},r=${nonce}`;
    let expected;

    function final(challenge) {
        const fields = Object.fromEntries(challenge.split(',').map(part => [part[0], part.slice(2)]));
        if (!fields.r.startsWith(nonce)) throw new Error('the server changed our nonce');
        const salt = Buffer.from(fields.s, 'base64');
        const salted = crypto.pbkdf2Sync(password.normalize('NFKC'), salt, Number(fields.i), length, hash);
        const clientKey = hmac(salted, 'Client Key');
        const stored = crypto.createHash(hash).update(clientKey).digest();
        const unproven = `c=${Buffer.from('n,,').toString('base64')},r=${fields.r}`;
        const text = `${first},${challenge},${unproven}`;
        expected = hmac(hmac(salted, 'Server Key'), text).toString('base64');
        return `${unproven},p=${xor(clientKey, hmac(stored, text)).toString('base64')}`;
    }

    return {
        start(callback) {
            callback(undefined, Buffer.from('n,,' + first));
        },
        step(challenge, callback) {
            const text = challenge.toString();
            try {
                if (!expected) return callback(undefined, Buffer.from(final(text)));
                if (text !== `v=${expected}`) throw new Error('the server does not know our password');
                return callback(undefined, Buffer.alloc(0));
            } catch (error) {
                return callback(error);
            }
        },
    };
}

module.exports = {scramClient};
