// Requests with a dynamic node to reply to. As proton_request.py.
'use strict';

const {decode, say, options, connect, done, lines} = require('./rhea_peer.js');

const given = options({to: {type: 'string'}});
const requests = lines();
const connection = connect(given);
const sender = connection.open_sender({target: given.address === undefined ? {} : {address: given.address}});
const receiver = connection.open_receiver({source: {dynamic: true}});

let asked = 0;
let answered = 0;
function request() {
    // One at a time, whatever event asks for the next.
    if (asked > answered || !requests.length || !sender.sendable() || !receiver.is_remote_open()) return;
    sender.send({
        to: given.to, reply_to: receiver.source.address, correlation_id: String(asked), body: requests.shift(),
    });
    asked += 1;
}

receiver.on('receiver_open', () => {
    say('attached', {address: receiver.source.address});
    request();
});
sender.on('sendable', request);
for (const outcome of ['rejected', 'released']) {
    sender.on(outcome, () => {
        say('failed', {error: 'request ' + outcome});
        process.exit(1);
    });
}
receiver.on('message', ({message}) => {
    const {body, correlation_id: correlation} = decode(message);
    say('response', {body, correlation: correlation === String(answered)});
    answered += 1;
    if (requests.length) request();
    else setImmediate(() => { say('done'); done(connection); });
});
