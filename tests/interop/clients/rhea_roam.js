// Send or receive numbered messages over connections that rhea makes again, as proton_roam.py.
'use strict';

const {parseArgs} = require('node:util');
const fs = require('node:fs');
const rhea = require('rhea');

const {values: given, positionals: urls} = parseArgs({
    options: {url: {type: 'string'}, address: {type: 'string'}, receive: {type: 'boolean'}},
    allowPositionals: true,
});

function say(event, fields) {
    fs.writeSync(1, JSON.stringify({event, ...fields}) + '\n');
}

const places = urls.map(each => new URL(each));
let tried = 0;
const connection = rhea.create_container().connect({
    connection_details: () => {
        const place = places[tried++ % places.length];
        return {host: place.hostname, port: Number(place.port)};
    },
    initial_reconnect_delay: 10,
    max_reconnect_delay: 100,
});
let isOpen = false;  // rhea's senders keep their credit while there is no connection, and forget what they send then
connection.on('connection_open', () => {
    isOpen = true;
    say('opened', {container: connection.container_id});
});
connection.on('connection_error', () => {});

let isEnding = false;
process.on('SIGTERM', () => { isEnding = true; });

const unsettled = new Map();
function told(outcome) {
    return ({delivery}) => {
        if (!unsettled.has(delivery.id)) return;
        say('outcome', {index: unsettled.get(delivery.id), outcome});
        unsettled.delete(delivery.id);
    };
}
connection.on('disconnected', () => {
    isOpen = false;
    for (const index of unsettled.values()) say('outcome', {index, outcome: 'unknown'});
    unsettled.clear();
});

let longest = 0;
let sentAt;
let number = 0;
let sender;
if (given.receive) {
    const receiver = connection.open_receiver({source: {address: given.address}, credit_window: 10});
    receiver.on('message', ({message}) => say('message', {body: message.body}));
} else {
    sender = connection.open_sender({target: {address: given.address}, treat_modified_as_released: false});
    for (const outcome of ['accepted', 'rejected', 'released', 'modified']) sender.on(outcome, told(outcome));
}

setInterval(() => {
    if (isEnding && !unsettled.size) {
        say('ended', {longest: longest / 1000});
        connection.close();
        process.exit(0);
    }
    if (sender && isOpen && !isEnding && !unsettled.size && sender.sendable()) {
        const now = Date.now();
        if (sentAt !== undefined) longest = Math.max(longest, now - sentAt);
        sentAt = now;
        say('sent', {index: number});
        const delivery = sender.send({body: `${given.address} ${number}`});
        unsettled.set(delivery.id, number);
        number += 1;
    }
}, 10);
