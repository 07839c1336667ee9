// What the rhea clients share: arguments, connecting, reporting, and an end in bounded time.
'use strict';

const crypto = require('node:crypto');
const fs = require('node:fs');
const {parseArgs} = require('node:util');
const rhea = require('rhea');
const {scramClient} = require('./scram.js');

// Handing the encoded message through is the way to see AMQP's types, which rhea's decoder drops.
const {decode} = rhea.message;
rhea.message.decode = encoded => encoded;

function say(event, fields) {
    fs.writeSync(1, JSON.stringify({event, ...fields}) + '\n');
}

function fail(reason) {
    say('failed', {error: reason});
    process.exit(1);
}

const COMMON = {
    url: {type: 'string'},
    address: {type: 'string'},
    timeout: {type: 'string', default: '20'},
    'container-id': {type: 'string'},
    heartbeat: {type: 'string'},
    'max-frame-size': {type: 'string'},
    mechanism: {type: 'string'},
    user: {type: 'string'},
    password: {type: 'string'},
    token: {type: 'string'},
    trust: {type: 'string'},
    certificate: {type: 'string'},
    key: {type: 'string'},
};

function options(specific) {
    const {values} = parseArgs({options: {...COMMON, ...specific}});
    setTimeout(() => fail(`time-out after ${values.timeout} s`), Number(values.timeout) * 1000).unref();
    return values;
}

function connect(given) {
    const url = new URL(given.url);
    const container = rhea.create_container(given['container-id'] ? {id: given['container-id']} : {});
    const how = {host: url.hostname, port: Number(url.port), reconnect: false};
    if (url.protocol === 'ws:' || url.protocol === 'wss:') {
        const tls = given.trust ? {ca: fs.readFileSync(given.trust)} : {};
        how.connection_details = rhea.websocket_connect(require('ws'))(given.url, ['amqp'], tls);
        how.hostname = url.hostname;
    } else if (url.protocol === 'amqps:') {
        how.transport = 'tls';
        how.servername = url.hostname;
        how.rejectUnauthorized = true;
        if (given.trust) how.ca = fs.readFileSync(given.trust);
        if (given.certificate) {
            how.cert = fs.readFileSync(given.certificate);
            how.key = fs.readFileSync(given.key);
        }
    }
    if (given.user) how.username = given.user;
    if (given.password) how.password = given.password;
    if (given.heartbeat) how.idle_time_out = Number(given.heartbeat) * 1000;
    if (given['max-frame-size']) how.max_frame_size = Number(given['max-frame-size']);
    if (given.mechanism === 'EXTERNAL') how.enable_sasl_external = true;
    if (given.mechanism && given.mechanism.startsWith('SCRAM-')) {
        how.sasl_mechanisms = {[given.mechanism]: () => scramClient(given.mechanism, given.user, given.password)};
    }
    if (given.token) {
        const token = fs.readFileSync(given.token, 'utf8');
        if (given.mechanism === 'OAUTHBEARER') {
            const message = `n,,\x01host=${url.hostname}\x01auth=Bearer ${token}\x01\x01`;
            how.sasl_mechanisms = {OAUTHBEARER: () => ({
                start: callback => callback(undefined, message),
                step: (_, callback) => callback(undefined, '\x01'),
            })};
        } else if (given.mechanism === 'XOAUTH2') {
            how.token = token;  // the library's own
        }
    }
    if (given.mechanism === 'MSSBCBS') {
        how.sasl_mechanisms = {MSSBCBS: () => ({start: callback => callback(undefined, '')})};
    }
    const connection = container.connect(how);
    connection.on('connection_open', () => say('opened', {container: connection.container_id, user: given.user}));
    for (const what of ['connection', 'session', 'sender', 'receiver']) {
        connection.on(what + '_error', context => {
            const {condition, description} = (context[what] || context.connection).error;
            say(what + '-error', {condition, description});
            fail(`${what}: ${condition}: ${description}`);
        });
    }
    connection.on('disconnected', context => {
        if (!connection.finished) fail('disconnected: ' + context.error);
    });
    connection.on('error', error => fail(String(error)));
    container.on('error', error => fail(String(error)));
    return connection;
}

function done(connection) {
    connection.finished = true;
    connection.close();
}

const digest = content => crypto.createHash('sha256').update(content).digest('hex');

const lines = () => fs.readFileSync(0, 'utf8').split('\n').filter(line => line.trim()).map(line => JSON.parse(line));

module.exports = {rhea, decode, say, fail, options, connect, done, digest, lines};
