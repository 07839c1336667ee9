// Messages to send and outcomes, of the documents that the rhea programs read and write.
'use strict';

const crypto = require('node:crypto');
const {rhea} = require('./rhea_peer.js');
const values = require('./values.js');

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

// The user's message for a line of input.
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

// The peer's state of a delivery, with all its fields.
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

// Decide a delivery as asked; `settle` at once, or when its sender has.
function answer(delivery, wanted, settle) {
    const {message} = rhea;
    switch (wanted.outcome) {
    case 'accepted': delivery.update(settle, message.accepted().described()); break;
    case 'released': delivery.update(settle, message.released().described()); break;
    case 'rejected': {
        const error = wanted.condition && {condition: wanted.condition, description: wanted.description};
        if (error && wanted.info) error.info = values.objectOf(wanted.info);
        delivery.update(settle, message.rejected(error ? {error} : {}).described());
        break;
    }
    case 'modified': {
        const fields = {delivery_failed: wanted.failed, undeliverable_here: wanted.undeliverable};
        if (wanted.annotations) fields.message_annotations = values.objectOf(wanted.annotations);
        delivery.update(settle, message.modified(fields).described());
        break;
    }
    case 'none': delivery.update(true); break;
    default: break;  // hold: left alone
    }
}

module.exports = {messageOf, outcomeOf, answer};
