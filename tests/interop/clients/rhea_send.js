// Send the messages given on stdin, one JSON document per line, and report every outcome. As proton_send.py.
'use strict';

const {rhea, say, options, connect, done, digest, lines} = require('./rhea_peer.js');
const {messageOf, outcomeOf} = require('./rhea_message.js');
const values = require('./values.js');

const given = options({settled: {type: 'boolean'}, second: {type: 'boolean'}, pace: {type: 'string'}});

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
let held = false;
function send() {
    if (waiting.length && sender.sendable() && !held) {
        const encoded = rhea.message.encode(messageOf(waiting.shift()));
        const report = {sha256: digest(encoded)};
        if (encoded.length < 65536) report.sections = values.sections(encoded);
        say('sent', {index, ...report});
        const delivery = sender.send(encoded, undefined, 0);
        if (!given.settled) unsettled.set(delivery.id, index);
        index += 1;
        if (given.pace) {
            held = true;
            setTimeout(release, Number(given.pace) * 1000);
        } else {
            // One a turn: rhea counts credit down only at the end of the turn, and queues what exceeds it.
            setImmediate(send);
        }
    } else if (!waiting.length && !unsettled.size && !connection.finished) {
        done(connection);
    }
}
function release() {
    held = false;
    send();
}
sender.on('sendable', send);
process.on('SIGTERM', () => waiting.splice(0));

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
