/* Load clients of any pattern: senders, receivers, requesters and repliers, many in one process, which go in rounds.
 *
 *     clients send    url=amqp://127.0.0.1:5672 address=bench-% links=4
 *     clients receive url=amqp://127.0.0.1:5672 address=bench credit=10 + receive url=... address=bench credit=100
 *     clients receive listen=1                  (a peer of its own, behind a forwarder or a router's connector)
 *     clients request url=amqp://127.0.0.1:5672 address=service outstanding=100
 *     clients reply   url=amqp://127.0.0.1:5672 address=service by=sender
 *
 * Each line on stdin begins a round: so many messages are to be sent, received or answered by all of them together. All
 * links stay as they are in between, so that a round finds no connections of the one before it. JSON lines on stdout:
 * `ready`, once all links are attached and the senders have credit; `expects`, once those that receive know of a round;
 * the result of each round; or `failed` with the reason, and status 1. The end of stdin closes all.
 *
 * Each message has 100 octets of content, which name its sender and its number there; receivers check that numbers grow,
 * and no more messages come than are announced. It shares nothing with the router's engine: a fault there cannot hide
 * itself here. Sections (§) are of the standard.
 */
#define _GNU_SOURCE
#include "amqp.h"
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    CONTENT = 100,                    /* octets of a message's data, the last of its payload */
    STAMP = 16,                       /* octets of them: time, sender, number */
    OUTPUT_FULL = 1 << 17,            /* octets: who has written so much ahead waits until the socket has taken it */
    INPUT = 1 << 18,                  /* octets read at once */
    BURST = 64,                       /* messages that a link sends before the next link of its connection */
    EVENTS = 256,
    MOST_GROUPS = 16,
    LONGEST = 128,                    /* octets of an address, at most */
    MAX_FRAME_SIZE = 65536
};
#define PATIENCE (30ull * SECOND)     /* without any octet, after which a client gives up */
#define QUIET (2ull * SECOND)         /* ... or, where messages may be dropped, is content with what came */

/* ---- what they are ---------------------------------------------------------------------------------------------- */

typedef enum { SEND, RECEIVE, REQUEST, REPLY } kind;

/* Clients that are all alike. */
typedef struct {
    kind kind;
    char *host, *port;
    const char *address;
    const char *user;                 /* its name is its password; its messages have its user-id */
    unsigned connections, links;      /* links on each connection */
    unsigned credit, outstanding;     /* outstanding: messages without an outcome, or requests without a reply; 0: any */
    unsigned to;                      /* an anonymous sender's addresses, which take turns; 0: the link has one */
    unsigned ttl, pause;              /* milliseconds; pause: between two flows of a slow receiver */
    unsigned modified;                /* times that a receiver fails with each message before it accepts it */
    bool settled, listens, sasl, traced, identified, priorities, unordered, lossy, rejects, by_sender;
    double rate;                      /* messages a second of all of the group; 0: as credit allows */
} group;

typedef struct connection connection;
typedef struct link link_end;

struct link {
    connection *connection;
    const group *group;
    uint32_t number;                  /* among the links of the group */
    uint32_t handle;
    bool attached, sends, queued, touched, dynamic;
    link_end *next;                   /* of those that may send, or that were touched */
    /* a sender */
    uint32_t credit, delivery_count;  /* as in the peer's last flow */
    uint64_t done, quota, allowed;    /* messages sent; that are to be sent in all rounds so far; that may be by now */
    octets head;                      /* the header of its messages */
    octets waiting;                   /* a replier's replies that have no credit yet */
    char address[LONGEST];            /* of a sender for one requester; of a requester, where replies come */
    /* a receiver */
    uint32_t received, granted;
    uint32_t *numbers, known;         /* the last number of each sender */
    uint64_t flow_at;                 /* when a slow one gives credit again */
    link_end *partner;                /* a requester's and a replier's two links */
};

/* A reply that waits: where it goes, and the content of its request. */
typedef struct { char to[LONGEST]; uint8_t stamp[STAMP]; } reply;

/* A delivery that was sent unsettled. */
typedef struct { link_end *link; bool settled; } sent_delivery;

struct connection {
    int fd;
    const group *group;
    enum { CONNECTING, GREETING, SPEAKING, CLOSED } state;
    bool authenticated, writable_wanted, listed, has_range;
    unsigned channel;
    link_end **links;                 /* by our handle */
    uint32_t count;
    link_end **by_handle;             /* by the peer's handle */
    uint32_t handles;
    octets out, rest;
    uint32_t frames_out, frames_in;   /* transfers; the second as a transfer-id of the peer */
    uint32_t peer_in, peer_window;    /* the peer's next-incoming-id and incoming-window */
    link_end *first, *last;           /* links that may send */
    uint32_t next_id, oldest_id;      /* delivery-ids that were sent, and of those the first unsettled one */
    sent_delivery *sent;              /* a ring, by delivery-id */
    uint32_t ring;
    uint32_t range_first, range_last; /* received deliveries to be told of, and their outcome */
    unsigned range_code;
    uint64_t beat_every, beat_at;
};

static group groups[MOST_GROUPS];
static unsigned group_count;
static connection *connections;
static unsigned connection_count, listed_count;
static connection **listed;           /* connections that have something to write */
static link_end **senders, *touched;
static uint32_t sender_count, sender_room;
static link_end **slow;
static uint32_t slow_count;
static int poller = -1, timer = -1, listener = -1;
static uint8_t incoming[2 * INPUT];
static uint8_t content[CONTENT];

static bool running, is_ready;
static uint64_t started, moved, begun, scheduled;
static uint64_t attached, expected_links, ready_senders, expected_senders;
static uint64_t target, target_before; /* of all rounds so far */
static uint64_t sent, settled, received, replied;
static uint64_t outcomes[4];
static double cpu_begun;

static bool is_active(void) { return groups[0].kind == SEND || groups[0].kind == REQUEST; }

static void list(connection *c)
{
    if (c->listed) return;
    c->listed = true;
    listed[listed_count++] = c;
}

static void watch(connection *c, bool writable)
{
    if (c->writable_wanted == writable) return;
    c->writable_wanted = writable;
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

/* Whether all is written. */
static bool flush_output(connection *c)
{
    while (c->out.end > c->out.begin) {
        ssize_t wrote = write(c->fd, c->out.at + c->out.begin, c->out.end - c->out.begin);
        if (wrote < 0 && errno != EAGAIN && errno != EINTR) fail("write: %s", strerror(errno));
        if (wrote < 0) {
            watch(c, true);
            return false;
        }
        c->out.begin += (size_t)wrote;
    }
    watch(c, false);
    return true;
}

/* ---- what they say ---------------------------------------------------------------------------------------------- */

static size_t our_frame(connection *c)
{
    size_t at = frame_begin(&c->out, AMQP_FRAME);
    c->out.at[c->out.begin + at + 7] = (uint8_t)c->channel;
    list(c);
    return at;
}

/* An address of the group: a number is in the place of the percent sign. */
static void address_of(const group *g, uint32_t number, char *to)
{
    const char *percent = strchr(g->address, '%');
    int before = percent ? (int)(percent - g->address) : 0;
    if (percent) snprintf(to, LONGEST, "%.*s%" PRIu32 "%s", before, g->address, number, percent + 1);
    else snprintf(to, LONGEST, "%s", g->address);
}

/* Args: address: NULL: a dynamic source, or the anonymous terminus. */
static void put_attach(link_end *l, const char *name, const char *address)
{
    octets *o = &l->connection->out;
    size_t frame = our_frame(l->connection), list_at = list_begin(o, ATTACH, 10), terminus;
    put_text(o, 0xa1, name), put_uint(o, l->handle), put_boolean(o, !l->sends);
    put_ubyte(o, l->group->settled ? 1 : 0), put_ubyte(o, 0);
    for (unsigned descriptor = 0x28; descriptor <= 0x29; descriptor++) {
        bool is_its_own = l->sends == (descriptor == 0x29);
        terminus = list_begin(o, descriptor, !is_its_own || (!address && l->sends) ? 0 : address ? 1 : 5);
        if (is_its_own && address) put_text(o, 0xa1, address);
        else if (is_its_own && !l->sends) {
            for (unsigned i = 0; i < 4; i++) put_null(o);
            put_boolean(o, true);
        }
        list_end(o, terminus);
    }
    put_null(o), put_null(o);         /* unsettled, incomplete-unsettled */
    if (l->sends) put_uint(o, 0);
    else put_null(o);
    list_end(o, list_at), frame_end(o, frame);
}

/* Attach a link of ours. Its name has the handle at its end. */
static void attach(link_end *l, const char *address)
{
    char name[64];
    const connection *c = l->connection;
    snprintf(name, sizeof name, "%s-%d-%u-%" PRIu32, role, (int)getpid(), (unsigned)(c - connections), l->handle);
    put_attach(l, name, address);
    expected_links++;
}

static link_end *new_link(connection *c, const group *g, bool sends)
{
    link_end *l = enough(NULL, sizeof *l);
    *l = (link_end){.connection = c, .group = g, .handle = c->count, .sends = sends};
    c->links = enough(c->links, (c->count + 1) * sizeof *c->links);
    c->links[c->count++] = l;
    if (!sends) return l;
    if (g->ttl && !g->priorities) {
        size_t at = list_begin(&l->head, 0x70, 3);
        put_boolean(&l->head, false), put_null(&l->head), put_uint(&l->head, g->ttl), list_end(&l->head, at);
    } else put(&l->head, "\0\x53\x70\x45", 4); /* an empty header, as proton writes it */
    if (sender_count == sender_room) senders = enough(senders, (sender_room = 2 * sender_room + 64) * sizeof *senders);
    senders[sender_count++] = l;
    return l;
}

static void put_open(connection *c)
{
    octets *o = &c->out;
    char container[64];
    snprintf(container, sizeof container, "%s-%d-%u", role, (int)getpid(), (unsigned)(c - connections));
    size_t frame = our_frame(c), list_at = list_begin(o, OPEN, 3);
    o->at[o->begin + frame + 7] = 0;
    put_text(o, 0xa1, container), put_text(o, 0xa1, "localhost"), put_uint(o, MAX_FRAME_SIZE);
    list_end(o, list_at), frame_end(o, frame);
}

/* Args: channel: of the peer's begin, which this answers; -1: none. */
static void put_begin(connection *c, int channel)
{
    octets *o = &c->out;
    size_t frame = our_frame(c), list_at = list_begin(o, BEGIN, 5);
    if (channel < 0) put_null(o);
    else put_byte(o, 0x60), put_byte(o, 0), put_byte(o, (unsigned)channel);
    put_uint(o, 0), put_uint(o, WINDOW), put_uint(o, WINDOW), put_uint(o, 65535);
    list_end(o, list_at), frame_end(o, frame);
}

/* Open, begin and all attaches, pipelined (§2.4.3). */
static void put_opening(connection *c)
{
    const group *g = c->group;
    put(&c->out, "AMQP\0\1\0\0", 8);
    put_open(c), put_begin(c, -1);
    for (uint32_t i = 0; i < g->links; i++) {
        link_end *l = new_link(c, g, is_active());
        static uint32_t numbers[MOST_GROUPS];
        char address[LONGEST];
        l->number = numbers[g - groups]++;
        address_of(g, l->number, address);
        attach(l, g->to ? NULL : address);
        if (l->sends) expected_senders++;
        if (g->kind == SEND || g->kind == RECEIVE) continue;
        if (g->kind == REPLY && g->by_sender) continue; /* its senders come with their requesters */
        link_end *other = new_link(c, g, g->kind == REPLY);
        l->partner = other, other->partner = l, other->number = l->number;
        if (g->kind == REPLY) expected_senders++;
        else other->dynamic = true;
        attach(other, NULL);
    }
}

static void put_sasl(connection *c)
{
    octets *o = &c->out;
    put(o, "AMQP\3\1\0\0", 8);
    size_t frame = frame_begin(o, SASL_FRAME), list_at = list_begin(o, c->group->listens ? MECHANISMS : INIT,
                                                                   c->group->user ? 2 : 1);
    const char *user = c->group->user;
    put_text(o, 0xa3, user ? "PLAIN" : "ANONYMOUS");
    if (user) {
        size_t length = strlen(user);
        put_byte(o, 0xa0), put_byte(o, (unsigned)(2 * length + 2));
        put_byte(o, 0), put(o, user, length), put_byte(o, 0), put(o, user, length);
    }
    list_end(o, list_at), frame_end(o, frame);
}

static void give_credit(link_end *l)
{
    connection *c = l->connection;
    octets *o = &c->out;
    l->granted = l->received + l->group->credit;
    size_t frame = our_frame(c), list_at = list_begin(o, FLOW, 7);
    put_uint(o, c->frames_in), put_uint(o, WINDOW), put_uint(o, c->frames_out), put_uint(o, WINDOW);
    put_uint(o, l->handle), put_uint(o, l->received), put_uint(o, l->group->credit);
    list_end(o, list_at), frame_end(o, frame);
}

static void tell_range(connection *c)
{
    if (!c->has_range) return;
    c->has_range = false;
    octets *o = &c->out;
    size_t frame = our_frame(c), list_at = list_begin(o, DISPOSITION, 5);
    put_boolean(o, true), put_uint(o, c->range_first), put_uint(o, c->range_last), put_boolean(o, true);
    if (c->range_code == MODIFIED) {
        size_t state = list_begin(o, MODIFIED, 1);
        put_boolean(o, true), list_end(o, state);
    } else put(o, (uint8_t[]){0, 0x53, (uint8_t)c->range_code, 0x45}, 4);
    list_end(o, list_at), frame_end(o, frame);
}

static void decide(connection *c, uint32_t id, unsigned code)
{
    if (c->has_range && (code != c->range_code || id != c->range_last + 1)) tell_range(c);
    if (!c->has_range) c->range_first = id, c->has_range = true;
    c->range_last = id, c->range_code = code;
}

/* ---- a sender --------------------------------------------------------------------------------------------------- */

static bool may_send(const link_end *l)
{
    if (!running || l->delivery_count + l->credit == (uint32_t)l->done) return false;
    if (l->group->kind == REPLY) return l->waiting.end > l->waiting.begin;
    return l->done < l->quota && l->done < l->allowed;
}

static void queue(link_end *l)
{
    connection *c = l->connection;
    if (l->queued || !may_send(l)) return;
    l->queued = true, l->next = NULL;
    if (c->last) c->last->next = l;
    else c->first = l;
    c->last = l;
    list(c);
}

static void remember(connection *c, link_end *l)
{
    if (c->next_id - c->oldest_id == c->ring) {
        uint32_t room = c->ring ? 2 * c->ring : 1024;
        sent_delivery *wider = enough(NULL, room * sizeof *wider);
        for (uint32_t id = c->oldest_id; id != c->next_id; id++) wider[id % room] = c->sent[id % c->ring];
        free(c->sent);
        c->sent = wider, c->ring = room;
    }
    c->sent[c->next_id % c->ring] = (sent_delivery){.link = l};
}

/* Properties with a message-id, a user-id, an address, or an address for replies (part 3, §3.2.4). */
static void put_properties(octets *o, const uint8_t *id, const char *user, const char *to, const char *reply_to)
{
    size_t at = list_begin(o, 0x73, reply_to ? 5 : 3);
    if (id) put_byte(o, 0x98), put(o, id, STAMP);
    else put_null(o);
    if (user) put_text(o, 0xa0, user);
    else put_null(o);
    if (to) put_text(o, 0xa1, to);
    else put_null(o);
    if (reply_to) put_null(o), put_text(o, 0xa1, reply_to);
    list_end(o, at);
}

/* Application-properties with the trace context of a span of its own trace, sampled (part 3, §3.2.5). */
static void put_context(octets *o, uint64_t number)
{
    char context[72];
    uint64_t trace = (number + 1) * 0x9E3779B97F4A7C15; /* spread: routers choose by the last octets */
    put(o, "\0\x53\x74\xc1\x47\2\xa1\x0btraceparent\xa1\x37", 21);
    snprintf(context, sizeof context, "00-%016llx%016llx-0123456789abcdef-01", (unsigned long long)(number + 1),
             (unsigned long long)trace);
    put(o, context, 55);
}

static void send_next(connection *c, link_end *l, uint64_t now)
{
    octets *o = &c->out;
    const group *g = l->group;
    uint8_t stamp[STAMP];
    char to[LONGEST];
    reply answer;
    store64(stamp, now), store32(stamp + 8, l->number), store32(stamp + 12, (uint32_t)l->done);
    size_t frame = our_frame(c);
    /* handle, delivery-id, delivery-tag, message-format, settled */
    uint8_t *at = more_room(o, 32);
    memcpy(at, "\0\x53\x14\xc0\x12\5\x70", 7), store32(at + 7, l->handle);
    at[11] = 0x70, store32(at + 12, c->next_id);
    at[16] = 0xa0, at[17] = 4, store32(at + 18, c->next_id);
    at[22] = 0x43, at[23] = g->settled ? 0x41 : 0x42;
    at[4] = 24 - 5, o->end += 24;
    if (g->priorities) {
        size_t header = list_begin(o, 0x70, 2);
        put_boolean(o, false), put_ubyte(o, (unsigned)(l->done % 10)), list_end(o, header);
    } else put(o, l->head.at, l->head.end);
    const uint8_t *id = g->identified ? stamp : NULL; /* as long as a uuid */
    if (g->kind == REQUEST) put_properties(o, id, g->user, NULL, l->address);
    else if (g->kind == REPLY) {
        memcpy(&answer, l->waiting.at + l->waiting.begin, sizeof answer);
        l->waiting.begin += sizeof answer;
        memcpy(stamp, answer.stamp, STAMP);
        put_properties(o, id, g->user, answer.to, NULL);
    } else if (g->to) {
        address_of(g, (uint32_t)(l->done % g->to), to);
        put_properties(o, id, g->user, to, NULL);
    } else if (g->user || id) put_properties(o, id, g->user, NULL, NULL);
    if (g->traced) put_context(o, l->done);
    put(o, "\0\x53\x75\xa0", 4), put_byte(o, CONTENT);
    put(o, stamp, STAMP), put(o, content + STAMP, CONTENT - STAMP);
    frame_end(o, frame);
    if (!g->settled) remember(c, l);
    c->next_id++, c->frames_out++, l->done++, sent++;
    if (g->kind == REPLY) replied++;
}

/* Append what may be sent now, until enough waits to be written. */
static void fill(connection *c)
{
    uint64_t now = now_ns();
    while (c->out.end - c->out.begin < OUTPUT_FULL && c->first) {
        if ((int64_t)c->peer_window <= (uint32_t)(c->frames_out - c->peer_in)) return;
        link_end *l = c->first;
        c->first = l->next;
        if (!c->first) c->last = NULL;
        l->queued = false;
        uint32_t left = c->peer_window - (c->frames_out - c->peer_in);
        for (unsigned burst = 0; burst < BURST && burst < left && may_send(l); burst++) send_next(c, l, now);
        queue(l);
    }
}

static void drive(connection *c)
{
    if (c->state == CONNECTING || c->state == CLOSED) return;
    do {
        fill(c);
        if (!flush_output(c)) return;
    } while (c->first && c->peer_window > (uint32_t)(c->frames_out - c->peer_in));
}

static void on_outcome(connection *c, fields *f)
{
    if (!next_boolean(f)) return;     /* of what we receive */
    uint32_t first = next_uint(f, 0), last = next_uint(f, first);
    bool settles = next_boolean(f);
    const uint8_t *state = next_field(f), *end;
    fields ignored;
    unsigned code = state ? open_list(state, f->end, &ignored, &end) : 0;
    if ((int32_t)(last - c->next_id) >= 0 || (int32_t)(last - first) < 0)
        fail("an outcome for delivery %" PRIu32 ", which was not sent", last);
    if (!settles) fail("an outcome that does not settle");
    for (uint32_t id = first; id != last + 1; id++) {
        if ((int32_t)(id - c->oldest_id) < 0) continue;
        sent_delivery *d = &c->sent[id % c->ring];
        if (d->settled) continue;
        d->settled = true, settled++;
        if (code >= ACCEPTED && code <= MODIFIED) outcomes[code - ACCEPTED]++;
        if (d->link->group->kind == SEND && d->link->group->outstanding) d->link->allowed++, queue(d->link);
    }
    while (c->oldest_id != c->next_id && c->sent[c->oldest_id % c->ring].settled) c->oldest_id++;
}

/* ---- a receiver ------------------------------------------------------------------------------------------------- */

/* The deliveries that a message's header counts (part 3, §3.2.1). */
static uint32_t failed_before(const uint8_t *at, const uint8_t *end)
{
    fields f;
    if (end - at < 4 || at[0] || at[1] != 0x53 || at[2] != 0x70) return 0;
    open_list(at, end, &f, &at);
    skip(&f, 4);
    return next_uint(&f, 0);
}

static const uint8_t *properties_of(const uint8_t *at, const uint8_t *end)
{
    while (end - at > 4 && !at[0] && at[1] == 0x53 && at[2] < 0x73) at += 3 + value_size(at + 3, end);
    if (end - at < 4 || at[0] || at[1] != 0x53 || at[2] != 0x73) fail("a message without properties");
    return at;
}

static void text_of(const uint8_t *at, char *to)
{
    size_t head = at && *at == 0xa1 ? 2 : 5, length = at ? *at == 0xa1 ? at[1] : load32(at + 1) : 0;
    if (!at || (*at != 0xa1 && *at != 0xb1) || length >= LONGEST) fail("no address of up to %d octets", LONGEST - 1);
    memcpy(to, at + head, length), to[length] = 0;
}

static void answer(link_end *l, const uint8_t *payload, const uint8_t *end)
{
    fields f;
    reply r = {0};
    connection *c = l->connection;
    open_list(properties_of(payload, end), end, &f, &payload);
    skip(&f, 4);
    text_of(next_field(&f), r.to);
    memcpy(r.stamp, end - CONTENT, STAMP);
    link_end *by = l->partner;
    if (l->group->by_sender) {
        by = NULL;
        for (uint32_t i = 0; i < c->count && !by; i++)
            if (c->links[i]->sends && !strcmp(c->links[i]->address, r.to)) by = c->links[i];
        if (!by) {
            by = new_link(c, l->group, true);
            strcpy(by->address, r.to);
            attach(by, r.to);
        }
    }
    put(&by->waiting, &r, sizeof r);
    queue(by);
}

static void on_transfer(connection *c, fields *f, const uint8_t *payload, const uint8_t *end)
{
    c->frames_in++;
    uint32_t handle = next_uint(f, 0);
    link_end *l = handle < c->handles ? c->by_handle[handle] : NULL;
    if (!l || l->sends) fail("a transfer with handle %" PRIu32 ", which is no receiver's", handle);
    uint32_t id = next_uint(f, 0);
    skip(f, 2);
    bool is_settled = next_boolean(f);
    if (next_boolean(f) || end - payload < CONTENT) fail("a message of several frames, or too short a one");
    uint32_t number = load32(end - CONTENT + 8), at = load32(end - CONTENT + 12);
    if (memcmp(end - CONTENT + STAMP, content + STAMP, CONTENT - STAMP)) fail("content is not as it was sent");
    if (number >= l->known) {
        l->numbers = enough(l->numbers, (number + 1) * sizeof *l->numbers);
        while (l->known <= number) l->numbers[l->known++] = UINT32_MAX;
    }
    const group *g = l->group;
    if (!g->unordered && (int32_t)(at - l->numbers[number]) <= 0)
        fail("message %" PRIu32 " of sender %" PRIu32 " came after %" PRIu32, at, number, l->numbers[number]);
    l->numbers[number] = at;
    l->received++;
    if (!l->touched) l->touched = true, l->next = touched, touched = l;
    unsigned code = g->rejects ? REJECTED : g->modified && failed_before(payload, end) < g->modified ? MODIFIED : ACCEPTED;
    if (!is_settled) decide(c, id, code);
    if (code == MODIFIED) return;     /* it comes again */
    received++;
    if (received > target) fail("more messages came than were to come");
    if (g->kind == REQUEST) l->partner->allowed++, queue(l->partner);
    if (g->kind == REPLY) answer(l, payload, end);
}

static void renew_credit(void)
{
    for (; touched; touched = touched->next) {
        touched->touched = false;
        if (!touched->group->pause && touched->granted - touched->received <= touched->group->credit / 2)
            give_credit(touched);
    }
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

/* The link of ours that an attach answers; or a new one, if the peer attaches. */
static link_end *link_of(connection *c, const uint8_t *name, const uint8_t *end, bool peer_receives)
{
    char text[256] = {0};
    size_t head = *name == 0xa1 ? 2 : 5, length = value_size(name, end) - head;
    memcpy(text, name + head, length < sizeof text ? length : sizeof text - 1);
    if (c->group->listens) {
        if (peer_receives) fail("a receiver attached, but only senders may here");
        link_end *l = new_link(c, c->group, false);
        put_attach(l, text, c->group->address);
        return l;
    }
    char *dash = strrchr(text, '-');
    uint64_t number = dash ? strtoull(dash + 1, NULL, 10) : UINT64_MAX;
    if (number >= c->count || c->links[number]->attached) fail("an attach of %s, which is not expected", text);
    return c->links[number];
}

static void on_attach(connection *c, fields *f)
{
    const uint8_t *name = next_field(f);
    if (!name || (*name != 0xa1 && *name != 0xb1)) fail("an attach without a name");
    uint32_t handle = next_uint(f, 0);
    link_end *l = link_of(c, name, f->end, next_boolean(f));
    if (handle > 1 << 20) fail("a handle of %" PRIu32, handle);
    if (handle >= c->handles) {
        c->by_handle = enough(c->by_handle, (handle + 1) * sizeof *c->by_handle);
        while (c->handles <= handle) c->by_handle[c->handles++] = NULL;
    }
    c->by_handle[handle] = l;
    l->attached = true;
    if (!c->group->listens) attached++;
    if (l->dynamic) {
        skip(f, 2);
        const uint8_t *source = next_field(f), *end;
        fields s;
        if (!source) fail("no dynamic node");
        open_list(source, f->end, &s, &end);
        text_of(next_field(&s), l->partner->address);
    }
    if (l->sends) return;
    if (l->group->pause) {
        slow = enough(slow, (slow_count + 1) * sizeof *slow);
        slow[slow_count++] = l;
    }
    give_credit(l);
}

static void on_flow(connection *c, fields *f)
{
    c->peer_in = next_uint(f, 0), c->peer_window = next_uint(f, 0);
    skip(f, 2);
    uint32_t handle = next_uint(f, UINT32_MAX);
    link_end *l = handle < c->handles ? c->by_handle[handle] : NULL;
    if (l && l->sends) {
        bool had_credit = l->credit;
        l->delivery_count = next_uint(f, 0), l->credit = next_uint(f, 0);
        if (!had_credit && l->credit && !is_ready) ready_senders++;
        queue(l);
    }
    list(c);
}

static void on_begin(connection *c, fields *f, unsigned channel)
{
    skip(f, 1);
    c->frames_in = next_uint(f, 0), c->peer_window = next_uint(f, 0);
    if (c->group->listens) c->channel = channel, put_begin(c, (int)channel);
}

static void on_frame(connection *c, const uint8_t *frame, uint32_t size, uint64_t now)
{
    const uint8_t *at = frame + 4 * frame[4], *end = frame + size, *payload;
    if (at > end || frame[4] < 2) fail("a frame's head of %u words", frame[4]);
    if (at == end) return;            /* the peer lives */
    fields f;
    unsigned code = open_list(at, end, &f, &payload);
    switch (code) {
    case TRANSFER: on_transfer(c, &f, payload, end); break;
    case DISPOSITION: on_outcome(c, &f); break;
    case FLOW: on_flow(c, &f); break;
    case OPEN:
        skip(&f, 4);
        c->beat_every = (uint64_t)next_uint(&f, 0) * (SECOND / 1000) / 2;
        c->beat_at = now + c->beat_every;
        if (c->group->listens) put_open(c);
        break;
    case BEGIN: on_begin(c, &f, frame[7]); break;
    case ATTACH: on_attach(c, &f); break;
    case MECHANISMS: break;
    case INIT: {
        size_t outcome = frame_begin(&c->out, SASL_FRAME), list_at = list_begin(&c->out, OUTCOME, 1);
        put_ubyte(&c->out, 0), list_end(&c->out, list_at), frame_end(&c->out, outcome);
        c->authenticated = true, c->state = GREETING;
        list(c);
        break;
    }
    case OUTCOME:
        if (next_uint(&f, 1)) fail("the peer refuses ANONYMOUS");
        c->authenticated = true, c->state = GREETING;
        put_opening(c), list(c);
        break;
    case CLOSE: case END: case DETACH:
        if (!c->group->listens || running)
            fail("the peer said %s: %.*s", code == CLOSE ? "close" : code == END ? "end" : "detach", (int)(end - at),
                 (const char *)at);
        break;
    default: fail("a frame of type %#x", code);
    }
}

/* The protocol's head. One who listens answers it: with SASL, if the peer wants it. */
static void on_greeting(connection *c, const uint8_t *at)
{
    bool has_sasl = at[4] == 3;
    if (memcmp(at, has_sasl ? "AMQP\3\1\0\0" : "AMQP\0\1\0\0", 8)) fail("the peer does not speak AMQP 1.0");
    if (c->group->listens && has_sasl) put_sasl(c);
    else if (c->group->listens) put(&c->out, "AMQP\0\1\0\0", 8);
    else if (has_sasl != (c->group->sasl && !c->authenticated)) fail("the peer wants another protocol, or SASL");
    c->state = SPEAKING;
    list(c);
}

/* Returns: octets of whole frames, and of the protocol's head before them. */
static size_t on_octets(connection *c, const uint8_t *at, size_t length, uint64_t now)
{
    size_t taken = 0;
    while (length - taken >= 8) {
        const uint8_t *frame = at + taken;
        if (c->state == GREETING) {
            on_greeting(c, frame);
            taken += 8;
            continue;
        }
        uint32_t size = load32(frame);
        if (size < 8 || size > INPUT) fail("a frame of %" PRIu32 " octets", size);
        if (length - taken < size) break;
        on_frame(c, frame, size, now);
        taken += size;
    }
    return taken;
}

static void take_input(connection *c)
{
    size_t have = c->rest.end;
    if (have) memcpy(incoming, c->rest.at, have);
    ssize_t got = read(c->fd, incoming + have, INPUT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0 && (running || !c->group->listens)) fail("the peer ended the stream");
    if (got <= 0) {
        c->state = CLOSED;
        epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL);
        return;
    }
    moved = now_ns();
    size_t taken = on_octets(c, incoming, have += (size_t)got, moved);
    c->rest.end = 0;
    put(&c->rest, incoming + taken, have - taken);
    tell_range(c);
    renew_credit();
}

/* ---- rounds ----------------------------------------------------------------------------------------------------- */

static uint64_t due(uint64_t turn) { return begun + (uint64_t)((double)turn * 1e9 / groups[0].rate); }

/* Let those messages go that are due, and give credit to the slow. */
static void follow_schedule(uint64_t now)
{
    uint64_t next = UINT64_MAX;
    if (running && is_active() && groups[0].rate > 0) {
        for (; scheduled < target - target_before && due(scheduled) <= now; scheduled++) {
            link_end *l = senders[scheduled % sender_count];
            l->allowed++;
            queue(l);
        }
        if (scheduled < target - target_before) next = due(scheduled);
    }
    for (uint32_t i = 0; i < slow_count; i++) {
        link_end *l = slow[i];
        if (l->flow_at <= now) {
            if (l->granted != l->received + l->group->credit) give_credit(l);
            l->flow_at = now + l->group->pause * (uint64_t)(SECOND / 1000);
        }
        if (l->flow_at < next) next = l->flow_at;
    }
    if (next == UINT64_MAX) next = 0; /* which stops it */
    struct itimerspec at = {.it_value = {(time_t)(next / SECOND), (long)(next % SECOND)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void begin_round(uint64_t count)
{
    target_before = target, target += count;
    running = true, scheduled = 0;
    begun = moved = now_ns(), cpu_begun = cpu_seconds();
    memset(outcomes, 0, sizeof outcomes);
    for (uint32_t i = 0; is_active() && i < sender_count; i++) {
        link_end *l = senders[i];
        l->quota += count / sender_count + (i < count % sender_count);
        l->allowed = l->group->rate > 0 ? l->done : l->group->outstanding ? l->done + l->group->outstanding : UINT64_MAX;
        queue(l);
    }
    follow_schedule(begun);
}

static void end_round(void)
{
    uint64_t count = is_active() ? sent - target_before : received - target_before;
    double seconds = (double)(moved - begun) / 1e9;
    printf("{\"count\": %" PRIu64 ", \"seconds\": %.6f, \"cpu\": %.6f", count, seconds, cpu_seconds() - cpu_begun);
    if (is_active()) {
        const char *names[] = {"accepted", "rejected", "released", "modified"}, *comma = "";
        printf(", \"outcomes\": {");
        for (unsigned i = 0; i < 4; i++)
            if (outcomes[i]) printf("%s\"%s\": %" PRIu64, comma, names[i], outcomes[i]), comma = ", ";
        printf("}");
    }
    printf("}\n");
    fflush(stdout);
    running = false;
    if (received < target && !is_active()) target = received; /* what was dropped is not waited for */
}

static bool is_done(void)
{
    const group *g = &groups[0];
    if (is_active() && (sent < target || (!g->settled && settled < sent))) return false;
    if (g->kind != SEND && received < target) return false;
    if (g->kind == REPLY && (replied < target || settled < sent)) return false;
    for (unsigned i = 0; i < connection_count; i++)
        if (connections[i].out.begin < connections[i].out.end) return false;
    return true;
}

static void proceed(void)
{
    if (!is_ready && listener < 0 && attached >= expected_links && ready_senders >= expected_senders &&
        expected_links >= connection_count) {
        is_ready = true;
        printf("{\"ready\": true, \"seconds\": %.6f}\n", (double)(now_ns() - started) / 1e9);
        fflush(stdout);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &running};
        if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &event)) fail("stdin is no pipe");
    }
    for (unsigned i = 0; i < listed_count; i++) drive(listed[i]), listed[i]->listed = false;
    listed_count = 0;
    if (running && is_done()) end_round();
}

/* Close all, and read until the peers have closed too, for a while. */
static void close_all(void)
{
    uint64_t until = now_ns() + 2ull * SECOND;
    for (unsigned i = 0; i < connection_count; i++) {
        connection *c = &connections[i];
        if (c->state != SPEAKING) continue;
        size_t frame = our_frame(c), list_at = list_begin(&c->out, CLOSE, 0);
        c->out.at[c->out.begin + frame + 7] = 0;
        list_end(&c->out, list_at), frame_end(&c->out, frame);
        flush_output(c);
        shutdown(c->fd, SHUT_WR);
    }
    for (unsigned i = 0; i < connection_count; i++) {
        if (connections[i].state != SPEAKING) continue;
        fcntl(connections[i].fd, F_SETFL, 0);
        for (uint64_t now; (now = now_ns()) < until;) {
            struct timeval most = {0, 100000};
            setsockopt(connections[i].fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
            ssize_t got = read(connections[i].fd, incoming, INPUT);
            if (!got || (got < 0 && errno != EAGAIN)) break;
        }
    }
    exit(0);
}

static void on_stdin(void)
{
    char line[256] = {0};
    ssize_t got = read(STDIN_FILENO, line, sizeof line - 1);
    if (got <= 0) close_all();
    begin_round(strtoull(line, NULL, 10));
    if (is_active()) return;
    printf("{\"expects\": %" PRIu64 "}\n", target - target_before); /* so nothing can come too early */
    fflush(stdout);
}

static void look_at_clock(uint64_t now)
{
    for (unsigned i = 0; i < connection_count; i++) {
        connection *c = &connections[i];
        if (!c->beat_every || now < c->beat_at || c->state == CLOSED) continue;
        c->beat_at = now + c->beat_every;
        put(&c->out, "\0\0\0\x08\2\0\0\0", 8), list(c);
    }
    if (running && groups[0].lossy && received > target_before && now > moved + QUIET) end_round();
    else if ((running || !is_ready) && listener < 0 && now > moved + PATIENCE)
        fail("nothing came for 30 s; %" PRIu64 " of %" PRIu64 " links, %" PRIu64 " of %" PRIu64 " with credit; %" PRIu64
             " sent, %" PRIu64 " settled, %" PRIu64 " received, of %" PRIu64, attached, expected_links, ready_senders,
             expected_senders, sent, settled, received, target);
}

/* ---- sockets ---------------------------------------------------------------------------------------------------- */

static void begin_connection(connection *c, int fd, const group *g)
{
    c->fd = fd, c->group = g, c->writable_wanted = true;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

static void on_connected(connection *c)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) fail("connect: %s", strerror(error));
    c->state = GREETING;
    if (c->group->sasl) put_sasl(c);
    else put_opening(c);
    list(c);
}

static void connect_group(const group *g)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *to;
    int error = getaddrinfo(g->host, g->port, &hints, &to);
    if (error) fail("%s: %s", g->host, gai_strerror(error));
    for (unsigned i = 0; i < g->connections; i++) {
        int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) fail("socket: %s", strerror(errno));
        if (connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS) fail("connect: %s", strerror(errno));
        begin_connection(&connections[connection_count++], fd, g);
    }
    freeaddrinfo(to);
}

/* Args: port: 0: any that is free. */
static void begin_listening(unsigned port)
{
    struct sockaddr_in name = {
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port),
    };
    socklen_t length = sizeof name;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&name, length) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)&name, &length))
        fail("listen: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    event.data.ptr = &running;
    if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &event)) fail("stdin is no pipe");
    printf("{\"ready\": true, \"url\": \"amqp://127.0.0.1:%u\"}\n", ntohs(name.sin_port));
    fflush(stdout);
}

static void accept_new(void)
{
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (connection_count == groups[0].connections) fail("more than %u connections came", connection_count);
        connection *c = &connections[connection_count++];
        begin_connection(c, fd, &groups[0]);
        c->state = GREETING;
    }
}

static void run(void)
{
    struct epoll_event events[EVENTS];
    uint64_t look_at = 0;
    for (;;) {
        proceed();
        int count = epoll_wait(poller, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        uint64_t now = now_ns();
        for (int i = 0; i < count; i++) {
            void *what = events[i].data.ptr;
            if (what == &listener) accept_new();
            else if (what == &running) on_stdin();
            else if (what == &timer) follow_schedule(now);
            else {
                connection *c = what;
                if (c->state == CONNECTING) on_connected(c);
                if (events[i].events & EPOLLOUT) list(c);
                if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take_input(c);
            }
        }
        if (now >= look_at) look_at_clock(now), look_at = now + SECOND / 10;
    }
}

/* ---- the command line ------------------------------------------------------------------------------------------- */

static const char *const USAGE =
    "clients send|receive|request|reply NAME=VALUE... [+ the same kind again]...\n"
    "  url=amqp://HOST:PORT, or, to receive, listen=1 [port=N]; sasl=1: ANONYMOUS\n"
    "  user=NAME         PLAIN, with its name as its password; its messages have its user-id\n"
    "  address=TEXT      default bench-%; the number of the link is in the place of %\n"
    "  connections=N     default 1           links=N         on each, default 1\n"
    "  credit=N          default 500         outstanding=N   default 0: as credit allows\n"
    "  settled=1         pre-settled         rate=N          messages a second of all; default 0: as credit allows\n"
    "  to=N              an anonymous sender to N addresses, in turns\n"
    "  ttl=N             milliseconds        priorities=1    0 to 9 in turns\n"
    "  pause=N           milliseconds between two flows of a slow receiver\n"
    "  modified=N        times that a receiver fails with each message; rejected=1: it rejects each\n"
    "  traced=1          each message has the trace context of a span that is sampled\n"
    "  identified=1      each message has a message-id of its own\n"
    "  unordered=1       messages may overtake; lossy=1: messages may be dropped\n"
    "  by=sender         replies by a sender for each requester; default: by an anonymous one\n";

__attribute__((noreturn)) static void usage(const char *wrong)
{
    fprintf(stderr, "clients: %s\n%s", wrong, USAGE);
    exit(2);
}

static unsigned listening_port;

static void set(group *g, char *text)
{
    char *value = strchr(text, '=');
    if (!value) usage(text);
    *value++ = 0;
    unsigned number = (unsigned)strtoul(value, NULL, 10);
    if (!strcmp(text, "url")) {
        char *colon = strrchr(value, ':');
        if (strncmp(value, "amqp://", 7) || !colon || colon < value + 7) usage(value);
        *colon = 0, g->host = value + 7, g->port = colon + 1;
    } else if (!strcmp(text, "address")) g->address = value;
    else if (!strcmp(text, "connections")) g->connections = number;
    else if (!strcmp(text, "links")) g->links = number;
    else if (!strcmp(text, "credit")) g->credit = number;
    else if (!strcmp(text, "outstanding")) g->outstanding = number;
    else if (!strcmp(text, "settled")) g->settled = number;
    else if (!strcmp(text, "rate")) g->rate = strtod(value, NULL);
    else if (!strcmp(text, "to")) g->to = number;
    else if (!strcmp(text, "ttl")) g->ttl = number;
    else if (!strcmp(text, "priorities")) g->priorities = number;
    else if (!strcmp(text, "traced")) g->traced = number;
    else if (!strcmp(text, "identified")) g->identified = number;
    else if (!strcmp(text, "pause")) g->pause = number;
    else if (!strcmp(text, "modified")) g->modified = number;
    else if (!strcmp(text, "rejected")) g->rejects = number;
    else if (!strcmp(text, "unordered")) g->unordered = number;
    else if (!strcmp(text, "lossy")) g->lossy = number;
    else if (!strcmp(text, "by")) g->by_sender = !strcmp(value, "sender");
    else if (!strcmp(text, "sasl")) g->sasl = number;
    else if (!strcmp(text, "user")) g->user = value, g->sasl = true;
    else if (!strcmp(text, "listen")) g->listens = number;
    else if (!strcmp(text, "port")) listening_port = number;
    else usage(text);
}

static group *new_group(const char *what)
{
    const char *kinds[] = {"send", "receive", "request", "reply"};
    if (group_count == MOST_GROUPS) usage("too many groups");
    group *g = &groups[group_count++];
    *g = (group){.address = "bench-%", .connections = 1, .links = 1, .credit = 500};
    for (g->kind = SEND; g->kind <= REPLY; g->kind++)
        if (!strcmp(what, kinds[g->kind])) {
            if (g->kind != groups[0].kind) usage("all groups are of one kind");
            role = kinds[g->kind];
            return g;
        }
    usage(what);
}

int main(int argc, char **argv)
{
    group *g = NULL;
    unsigned most = 0;
    for (int i = 1; i < argc; i++)
        if (!g) g = new_group(argv[i]);
        else if (!strcmp(argv[i], "+")) g = NULL;
        else set(g, argv[i]);
    if (!g) usage("which clients?");
    for (unsigned i = 0; i < group_count; i++) {
        if (!groups[i].listens && !groups[i].host) usage("url, or listen?");
        most += groups[i].connections;
    }
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* who measures may be killed */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    for (unsigned i = 0; i < CONTENT; i++) content[i] = (uint8_t)(i * 7);
    connections = calloc(most, sizeof *connections);
    listed = calloc(most, sizeof *listed);
    if (!connections || !listed) fail("no memory for the connections");
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &timer};
    if (poller < 0 || timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event)) fail("epoll: %s", strerror(errno));
    started = moved = now_ns();
    if (groups[0].listens) begin_listening(listening_port);
    else
        for (unsigned i = 0; i < group_count; i++) connect_group(&groups[i]);
    run();
}
