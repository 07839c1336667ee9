// Send the messages given on stdin, one JSON document per line, and report every outcome. As proton_send.py.
'use strict';

const crypto = require('node:crypto');
const {rhea, say, options, connect, done, digest, lines} = require('./rhea_peer.js');
const values = require('./values.js');

const given = options({settled: {type: 'boolean'}, second: {type: 'boolean'}});

const PROPERTIES = [
    'message_id', 'user_id', 'to', 'subject', 'reply_to', 'correlation_id', 'content_type', 'content_encoding',
    'absolute_expiry_time', 'creation_time', 'group_id', 'group_sequence', 'reply_to_group_id',
];
const HEADER = ['durable', 'priority', 'ttl', 'first_acquirer', 'delivery_count'];

function field(message, name, typed) {
    if (typed[0] === 'null') return;
    const typeIsFixed = name !== 'message_id' && name !== 'correlation_id';
    message[name] = typeIsFixed ? values.fromJson(typed).value : values.fromJson(typed);
}

function messageOf(document) {
    if ('size' in document) {
        const content = crypto.createHash('shake128', {outputLength: document.size}).update(document.seed).digest();
        return {body: rhea.message.data_section(content), to: document.to};
    }
    const message = {};
    const bodies = document.sections.filter(([code]) => code >= 0x75 && code <= 0x77);
    for (const [code, value] of document.sections) {
        switch (code) {
        case 0x70: value[1].forEach((typed, i) => field(message, HEADER[i], typed)); break;
        case 0x71: message.delivery_annotations = values.objectOf(value); break;
        case 0x72: message.message_annotations = values.objectOf(value); break;
        case 0x73: value[1].forEach((typed, i) => field(message, PROPERTIES[i], typed)); break;
        case 0x74: message.application_properties = values.objectOf(value); break;
        case 0x78: message.footer = values.objectOf(value); break;
        default: break;
        }
    }
    const contents = bodies.map(([, value]) => values.fromJson(value));
    switch (bodies[0][0]) {
    case 0x75: message.body = rhea.message.data_sections(contents); break;
    case 0x76: message.body = rhea.message.sequence_sections(contents); break;
    default: message.body = contents[0];
    }
    return message;
}

function outcomeOf(state) {
    if (!state) return {outcome: null};
    const outcome = state.constructor.composite_type;
    if (outcome === 'rejected' && state.error) {
        const {condition, description} = state.error;
        const info = state.error.value[2];
        const fields = {outcome, condition, description: description === undefined ? null : description};
        if (info && info.value) fields.info = values.toJson(info);
        return fields;
    }
    if (outcome === 'modified') {
        const fields = {outcome, failed: Boolean(state.delivery_failed), undeliverable: Boolean(state.undeliverable_here)};
        const annotations = state.value[2];
        if (annotations && annotations.value) fields.annotations = values.toJson(annotations);
        return fields;
    }
    return {outcome};
}

const waiting = lines();
const unsettled = new Map();
const connection = connect(given);
const sender = connection.open_sender({
    target: given.address === undefined ? {} : {address: given.address},
    snd_settle_mode: given.settled ? 1 : 2,
    rcv_settle_mode: given.second ? 1 : 0,
    autosettle: false,
    treat_modified_as_released: false,
});

sender.on('sender_open', () => say('attached', {
    address: sender.target && sender.target.address,
    receiver_settle_mode: sender.rcv_settle_mode || 0,
    max_message_size: sender.max_message_size,
}));

let index = 0;
function send() {
    if (waiting.length && sender.sendable()) {
        const encoded = rhea.message.encode(messageOf(waiting.shift()));
        const report = {sha256: digest(encoded)};
        if (encoded.length < 65536) report.sections = values.sections(encoded);
        say('sent', {index, ...report});
        const delivery = sender.send(encoded, undefined, 0);
        if (!given.settled) unsettled.set(delivery.id, index);
        index += 1;
        // One a turn: rhea counts credit down only at the end of the turn, and queues what exceeds it.
        setImmediate(send);
    } else if (!waiting.length && !unsettled.size && !connection.finished) {
        done(connection);
    }
}
sender.on('sendable', send);

function updated({delivery}) {
    if (!unsettled.has(delivery.id)) return;
    const fields = outcomeOf(delivery.remote_state);
    say('outcome', {index: unsettled.get(delivery.id), settled: delivery.remote_settled, ...fields});
    if (delivery.remote_settled || fields.outcome) {
        unsettled.delete(delivery.id);
        delivery.update(true);
        send();
    }
}
for (const event of ['accepted', 'rejected', 'released', 'modified', 'settled']) sender.on(event, updated);
