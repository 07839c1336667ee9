// Answer requests: each body in capitals, to its reply-to, by an anonymous sender. As proton_respond.py.
'use strict';

const {decode, say, options, connect, done} = require('./rhea_peer.js');

const given = options({count: {type: 'string', default: '1'}});
const connection = connect(given);
const sender = connection.open_sender({target: {}});
const receiver = connection.open_receiver({source: {address: given.address}});
let answered = 0;

receiver.on('receiver_open', () => say('attached', {address: receiver.source.address}));
receiver.on('message', ({message}) => {
    const {body, reply_to: replyTo, correlation_id: correlation} = decode(message);
    say('request', {body, reply_to: replyTo});
    sender.send({to: replyTo, correlation_id: correlation, body: body.toUpperCase()});
});
sender.on('accepted', () => {
    answered += 1;
    if (answered === Number(given.count)) setImmediate(() => done(connection));
});
for (const outcome of ['rejected', 'released']) {
    sender.on(outcome, () => {
        say('failed', {error: 'answer ' + outcome});
        process.exit(1);
    });
}
