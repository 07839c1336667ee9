// Send or receive with a terminus that is asked to outlive its link, detach the link without closing it, and attach it
// again. rhea keeps no unsettled map: --map says which one is written by hand. SIGUSR2 begins each of the two steps.
'use strict';

const types = require('rhea/lib/types.js');
const {rhea, say, options, connect, done} = require('./rhea_peer.js');
const {outcomeOf} = require('./rhea_message.js');

const given = options({
    receive: {type: 'boolean'},
    kept: {type: 'string', default: '60'},
    map: {type: 'string', default: 'none'},  // none; empty; named: with the tags; accepted: with an outcome of each
});
const connection = connect(given);
const terminus = {address: given.address, timeout: Number(given.kept), expiry_policy: 'link-detach'};
const encode = text => rhea.message.encode({body: text});
const tags = [];

function attach() {
    const again = tags.length > 0;
    const link = given.receive
        ? connection.open_receiver({name: 'link', source: terminus, autoaccept: false, autosettle: false})
        : connection.open_sender({name: 'link', target: terminus, autosettle: false, treat_modified_as_released: false});
    if (again && given.map !== 'none') {
        // An option of that name would have strings for keys.
        const state = () => given.map === 'accepted' ? rhea.message.accepted().described() : null;
        const named = given.map === 'empty' ? [] : tags.map(tag => [tag, state()]);
        link.local.attach.value[7] = types.wrap_map_as_map(new Map(named));
    }
    link.on(given.receive ? 'receiver_open' : 'sender_open', () => {
        const remote = link.remote.attach;
        const end = given.receive ? remote.source : remote.target;
        const {unsettled} = remote;
        say('attached', {kept: end.timeout || 0, unsettled: unsettled ? Object.keys(unsettled) : null});
    });
    link.on(given.receive ? 'receiver_close' : 'sender_close', () => {
        const {closed} = link.remote.detach;
        say('detached', {closed: Boolean(closed)});
        if (closed) done(connection);
    });
    link.on('message', ({message, delivery}) => {
        say('message', {tag: String(delivery.tag), has_state: Boolean(delivery.remote_state)});
        if (!tags.length) tags.push(delivery.tag);
        else if (message && message.length) delivery.accept();
    });
    for (const event of ['accepted', 'rejected', 'released', 'modified']) {
        link.on(event, ({delivery}) => {
            say('outcome', {tag: String(delivery.tag), ...outcomeOf(delivery.remote_state)});
            delivery.update(true);
        });
    }
    link.once('sendable', () => {
        if (again && given.map === 'named') resume(link);
        const tag = Buffer.from(again ? 'second' : 'first');
        tags.push(tag);
        link.send(encode(String(tag)), tag, 0);
        say('sent', {tag: String(tag)});
    });
    return link;
}

// Write the transfer that rhea has no command for: it resumes a delivery, without octets.
function resume(link) {
    const {session} = link;
    const {output} = session;
    session.output = function (frame, payload) {
        session.output = output;
        return output.call(session, Object.assign(frame, {resume: true}), payload.subarray(0, 0));
    };
    link.send(encode(''), tags[0], 0);
    session.outgoing.process();
}

let link = attach();
let isDetached = false;
process.on('SIGUSR2', () => {
    if (isDetached) link = attach();
    else link.detach();
    isDetached = true;
});
process.on('SIGTERM', () => link.close());  // so that the router keeps it no longer
