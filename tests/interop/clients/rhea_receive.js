// Receive messages, answer each with the outcome asked for, and report what came. As proton_receive.py.
'use strict';

const {say, options, connect, done, digest} = require('./rhea_peer.js');
const {answer} = require('./rhea_message.js');
const values = require('./values.js');

const given = options({
    count: {type: 'string', default: '1'},
    credit: {type: 'string', default: '10'},
    outcomes: {type: 'string', default: '[{"outcome": "accepted"}]'},
    second: {type: 'boolean'},
    dynamic: {type: 'boolean'},
    copy: {type: 'boolean'},
    drain: {type: 'string'},
});

const outcomes = JSON.parse(given.outcomes);
const wantedCount = Number(given.count);
const connection = connect(given);
const source = given.dynamic ? {dynamic: true} : {address: given.address};
if (given.copy) source.distribution_mode = 'copy';
const receiver = connection.open_receiver({
    source,
    credit_window: given.drain ? 0 : Number(given.credit),
    autoaccept: false,
    autosettle: false,
    rcv_settle_mode: given.second ? 1 : 0,
});

let count = 0;
let drained = false;
const unsettled = new Map();

receiver.on('receiver_open', () => {
    say('attached', {address: receiver.source.address, distribution_mode: receiver.source.distribution_mode});
    if (given.drain) {
        receiver.add_credit(Number(given.drain));
        receiver.drain_credit();
    }
});

receiver.on('receiver_drained', () => {
    say('drained', {credit: receiver.credit, count});
    drained = true;
    endIfComplete();
});

function endIfComplete() {
    // The disposition leaves before the close: rhea writes what a turn asked for at its end.
    const complete = given.drain ? drained : count === wantedCount;
    if (complete && !unsettled.size && !answers.length) setImmediate(() => done(connection));
}

// rhea joins the first two dispositions of a turn whatever their outcomes: each answer gets a turn of its own.
const answers = [];
function answerNext() {
    answers.shift()();
    endIfComplete();
    if (answers.length) setImmediate(answerNext);
}

receiver.on('message', ({message, delivery}) => {
    const index = count++;
    const report = {size: message.length, sha256: digest(message)};
    if (message.length < 65536) report.sections = values.sections(message);
    say('message', {index, settled: delivery.remote_settled, ...report});
    const wanted = outcomes[index % outcomes.length];
    if (delivery.remote_settled) {
        delivery.update(true);
        endIfComplete();
        return;
    }
    if (given.second || wanted.outcome === 'hold') unsettled.set(delivery.id, index);
    answers.push(() => answer(delivery, wanted, !given.second));
    if (answers.length === 1) setImmediate(answerNext);
});

receiver.on('settled', ({delivery}) => {
    if (!unsettled.has(delivery.id)) return;
    say('settled', {index: unsettled.get(delivery.id)});
    unsettled.delete(delivery.id);
    delivery.update(true);
    endIfComplete();
});
