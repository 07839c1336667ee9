// A container that takes connections, as rhea's users write one, and says what its peer does. As proton_listen.py, and:
// with `--user` and `--password` it wants PLAIN, with `--certificate` and `--key` it wants TLS.
'use strict';

const fs = require('node:fs');
const {parseArgs} = require('node:util');
const {rhea, decode, say, digest, lines} = require('./rhea_peer.js');
const {messageOf, outcomeOf, answer} = require('./rhea_message.js');
const values = require('./values.js');

const {values: given} = parseArgs({options: {
    credit: {type: 'string', default: '10'},
    outcomes: {type: 'string', default: '[{"outcome": "accepted"}]'},
    user: {type: 'string'},
    password: {type: 'string'},
    elsewhere: {type: 'string'},
    moved: {type: 'string'},
    certificate: {type: 'string'},
    key: {type: 'string'},
}});

const SECOND = 1;
const outcomes = JSON.parse(given.outcomes);
const documents = lines();
const container = rhea.create_container({
    receiver_options: {credit_window: 0, autoaccept: false, autosettle: false},
    sender_options: {autosettle: false, treat_modified_as_released: false},
});
const replies = new Map();
let count = 0;

if (given.user) {
    container.sasl_server_mechanisms.enable_plain(
        (user, password) => user === given.user && password === given.password);
} else {
    container.sasl_server_mechanisms.enable_anonymous();
}

container.on('connection_open', ({connection}) => {
    const {container_id: name, hostname} = connection.remote.open;
    const user = connection.sasl_transport && connection.sasl_transport.username;
    say('opened', {container: name, hostname, user});
    if (given.moved) {
        connection.close({condition: 'amqp:connection:redirect', description: 'it moved', info: info(given.moved)});
    }
});
container.on('connection_close', () => say('closed', {}));
container.on('disconnected', () => {});
container.on('error', error => say('error', {error: String(error)}));

function info(text) {
    return JSON.parse(text);  // its keys go as strings: rhea has no other way
}

function isElsewhere(link, address) {
    if (!given.elsewhere || address !== 'elsewhere') return false;
    link.close({condition: 'amqp:link:redirect', description: 'it moved', info: info(given.elsewhere)});
    return true;
}

function missing(link) {
    link.close({condition: 'amqp:not-found', description: 'there is no such node'});
}

// ------------------------------------------------------------------------------------------------------- to the peer

container.on('sender_open', ({sender}) => {
    let {address} = sender.source;
    if (address === 'missing') {
        missing(sender);
        return;
    }
    if (isElsewhere(sender, address)) return;
    if (sender.source.dynamic) {
        address = `reply-${replies.size}`;
        replies.set(address, sender);
        sender.set_source({address, dynamic: true});
    } else {
        sender.waiting = documents.slice();
        sender.unsettled = new Map();
        sender.index = 0;
        sender.set_source({address});
    }
    say('attached', {address, role: 'sender'});
});

function send(sender) {
    if (!sender.waiting) return;
    if (!sender.waiting.length && sender.draining) {
        sender.draining = false;
        sender.set_drained(true);
        sender.connection._register();  // outside of its events rhea does not look what is to be written
    } else if (sender.waiting.length && sender.sendable()) {
        const encoded = rhea.message.encode(messageOf(sender.waiting.shift()));
        say('sent', {index: sender.index, sha256: digest(encoded)});
        const delivery = sender.send(encoded, undefined, 0);
        sender.unsettled.set(delivery.id, sender.index++);
        // One a turn: rhea counts credit down only at the end of the turn, and queues what exceeds it.
        setImmediate(send, sender);
    }
}
// Not in this turn: the peer may have given credit with its attach, and ours has to leave before a transfer.
container.on('sendable', ({sender}) => setImmediate(send, sender));
container.on('sender_draining', ({sender}) => {
    sender.draining = true;
    setImmediate(send, sender);
});

function updated({sender, delivery}) {
    if (!sender.unsettled || !sender.unsettled.has(delivery.id)) return;
    const fields = outcomeOf(delivery.remote_state);
    if (!delivery.remote_settled && !fields.outcome) return;
    say('outcome', {index: sender.unsettled.get(delivery.id), settled: delivery.remote_settled, ...fields});
    sender.unsettled.delete(delivery.id);
    delivery.update(true);
}
for (const event of ['accepted', 'rejected', 'released', 'modified', 'settled']) container.on(event, updated);

// ----------------------------------------------------------------------------------------------------- from the peer

container.on('receiver_open', ({receiver}) => {
    const address = receiver.target && receiver.target.address;
    if (address === 'missing') {
        missing(receiver);
        return;
    }
    if (isElsewhere(receiver, address)) return;
    receiver.set_target({address});
    receiver.add_credit(Number(given.credit));
    say('attached', {address, role: 'receiver'});
});

// rhea joins the first two dispositions of a turn whatever their outcomes: each answer gets a turn of its own.
const answers = [];
function answerNext() {
    answers.shift()();
    if (answers.length) setImmediate(answerNext);
}

container.on('message', ({receiver, connection, delivery, message: encoded}) => {
    const report = {size: encoded.length, sha256: digest(encoded)};
    if (encoded.length < 65536) report.sections = values.sections(encoded);
    say('message', {index: count, settled: delivery.remote_settled, ...report});
    const wanted = outcomes[count % outcomes.length];
    count += 1;
    receiver.add_credit(1);
    const message = decode(encoded);
    const endpoint = {detach: receiver, end: receiver.session, close: connection}[message.body];
    if (endpoint) {
        endpoint.close({condition: 'amqp:not-allowed', description: `${message.body} as asked`});
        return;
    }
    if (replies.has(message.reply_to)) {
        replies.get(message.reply_to).send({
            body: message.body.toUpperCase(), correlation_id: message.correlation_id || message.message_id,
        });
    }
    if (delivery.remote_settled) {
        delivery.update(true);
        return;
    }
    answers.push(() => answer(delivery, wanted, receiver.rcv_settle_mode !== SECOND));
    if (answers.length === 1) setImmediate(answerNext);
});
container.on('settled', ({receiver, delivery}) => {
    if (!receiver) return;
    say('settled', {});
    delivery.update(true);
});

const listening = {host: '127.0.0.1', port: 0};
if (given.certificate) {
    Object.assign(listening, {
        transport: 'tls', cert: fs.readFileSync(given.certificate), key: fs.readFileSync(given.key),
    });
}
const server = container.listen(listening);
server.on('listening', () => {
    say('listening', {url: `${given.certificate ? 'amqps://localhost' : 'amqp://127.0.0.1'}:${server.address().port}`});
});
