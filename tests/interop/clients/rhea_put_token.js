// Put tokens at $cbs, one for each line of stdin, then attach a receiver to the address.
'use strict';

const {decode, rhea, say, options, connect, done, lines} = require('./rhea_peer.js');

const given = options({type: {type: 'string', default: 'jwt'}, stay: {type: 'boolean', default: false}});
const tokens = lines();
const connection = connect(given);
const answers = connection.open_receiver({source: {address: '$cbs'}, target: {address: 'my-answers'}});
const requests = connection.open_sender({target: {address: '$cbs'}, source: {address: 'my-requests'}});

function put() {
    requests.send({
        message_id: rhea.generate_uuid(), reply_to: 'my-answers', body: tokens.shift(),
        application_properties: {operation: 'put-token', type: given.type, name: given.address},
    });
}

requests.once('sendable', put);
answers.on('message', ({message}) => {
    const {application_properties: properties} = decode(message);
    say('answer', {status: properties['status-code'], description: properties['status-description']});
    if (tokens.length) return put();
    const receiver = connection.open_receiver({source: {address: given.address}});
    receiver.on('receiver_open', () => {
        say('attached');
        if (!given.stay) done(connection);
    });
});
