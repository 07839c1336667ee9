/* A load generator for any AMQP 1.0 peer, which takes so little itself that what it loads is what is measured.
 *
 *     loadgen send    --url amqp://127.0.0.1:5672 --count 1000000
 *     loadgen receive --url amqp://127.0.0.1:5672 --count 1000000
 *     loadgen receive --listen --count 1000000        (a peer of its own: sender straight to receiver)
 *
 * One process has any number of connections, each with any number of links in one session. Link n of the sender and
 * link n of the receiver are a pair. Each message says when it was due, its link and its number there; the receiver
 * checks that numbers come one after the other, and the content, and the sender counts outcomes. What is wrong ends the
 * process with status 1. JSON lines on stdout: `ready`, `held` with --hold, at last the result, or `failed` with the
 * reason. With --wait a line on stdin is awaited before a sender begins, and before any closes its connections.
 *
 * It shares nothing with the router's engine: a fault there cannot hide itself here. Sections (§) are of the standard.
 */
#define _GNU_SOURCE
#include "amqp.h"
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#else
typedef void SSL;
#endif

enum {
    STAMP = 16,                       /* octets of content that say due time, link and number */
    HEAD = 512,                       /* octets of a frame before its content, at most */
    MOST_SIZES = 32,                  /* different sizes in a row */
    COPIED = 8192,                    /* content of up to so many octets is copied; more is written from where it is */
    OUTPUT_FULL = 1 << 17,            /* octets: who has written so much ahead waits until the socket has taken it */
    BURST = 64,                       /* messages that a link sends before the next link of its connection */
    EVENTS = 256,
    RICH = 300,                       /* octets of the sections of a --rich message, its content's head included */
    EDGE = 64,                        /* octets at either end of a large frame's content that are always compared */
    WHOLE_TO = 4096, WHOLE_EVERY = 16 /* smaller content is compared whole, of larger every so many messages' */
};
#define NO_LIMIT UINT64_MAX

/* ---- options ---------------------------------------------------------------------------------------------------- */

typedef struct {
    bool sends, listens, settled, second, each, rich, sasl, waits, holds, lossy, whole, tls;
    const char *host, *port, *hostname, *address, *certificate, *key;
    unsigned connections, links, credit, outstanding, lasting, max_frame_size, sizes, listening_port;
    struct { uint32_t octets, times; } size[MOST_SIZES];
    unsigned cycle;                   /* messages after which the sizes begin anew */
    uint64_t count, skip;
    double rate, patience;
} options;

static options opt = {
    .hostname = "localhost", .address = "bench-%", .connections = 1, .links = 1, .credit = 500,
    .max_frame_size = 65536, .count = 100000, .patience = 60,
};

/* ---- latencies: counts in buckets that are 1/128 of their value wide -------------------------------------------- */

enum { FINE = 7, BUCKETS = (64 - FINE + 1) << FINE };
typedef struct { uint64_t count, most, bucket[BUCKETS]; } histogram;

static void note(histogram *h, uint64_t value)
{
    unsigned shift = value >> FINE ? 63 - FINE - (unsigned)__builtin_clzll(value) : 0;
    h->bucket[((uint64_t)shift << FINE) + (value >> shift)]++;
    h->count++;
    if (value > h->most) h->most = value;
}

/* The largest value of the bucket that this part of all values lies in or below. */
static double part_us(const histogram *h, double part)
{
    uint64_t wanted = (uint64_t)(part * (double)h->count), seen = 0;
    if (wanted >= h->count) wanted = h->count - 1;
    for (unsigned i = 0; i < BUCKETS; i++)
        if ((seen += h->bucket[i]) > wanted) {
            unsigned shift = i >> (FINE + 1) ? (i >> FINE) - 1 : 0;
            uint64_t upper = (((uint64_t)i - ((uint64_t)shift << FINE) + 1) << shift) - 1;
            return (double)(upper < h->most ? upper : h->most) / 1e3;
        }
    return 0;
}

static void print_latency(const char *name, const histogram *h)
{
    if (!h->count) return;
    printf(", \"%s\": {\"p50\": %.2f, \"p90\": %.2f", name, part_us(h, .5), part_us(h, .9));
    printf(", \"p99\": %.2f, \"p99.9\": %.2f", part_us(h, .99), part_us(h, .999));
    printf(", \"max\": %.2f, \"count\": %" PRIu64 "}", (double)h->most / 1e3, h->count);
}

/* ---- connections and links -------------------------------------------------------------------------------------- */

typedef struct connection connection;
typedef struct link link_end;

struct link {
    connection *connection;
    uint32_t number, handle;          /* over all connections; within its own */
    bool attached, queued, touched;
    uint64_t count;                   /* messages that it is to carry */
    uint64_t done;                    /* sent, or received, or known to be lost */
    uint64_t allowed;                 /* sender: that may have been sent by now, for rate and outstanding */
    uint32_t credit, delivery_count;  /* sender: as in the peer's last flow */
    uint64_t granted;                 /* receiver: the number of messages that it has given credit for */
    bool inside;                      /* receiver: in the middle of a message */
    bool compared;                    /* ... all of whose content is compared */
    uint32_t id, size, offset;        /* ... its delivery-id, its content's octets, and how many have come */
    uint64_t due;                     /* ... and its time */
    link_end *next;                   /* of those that may send */
};

/* A delivery that was sent unsettled. */
typedef struct { uint32_t link; uint8_t told, settled; uint64_t due; } sent_delivery;

struct connection {
    int fd;
    SSL *ssl;
    uint32_t number;
    enum { CONNECTING, GREETING, SPEAKING, CLOSED } state;
    bool authenticated, begun, writable_wanted, listed, has_range;
    link_end *links;
    link_end **by_handle;             /* the peer's handles */
    uint32_t handles;
    octets out, rest;
    const uint8_t *tail;              /* content that follows `out`, written from where it is */
    size_t tail_length;
    octets later;                     /* frames that follow the tail */
    uint32_t frame_size;              /* the largest that the peer takes */
    uint32_t frames_out, frames_in;   /* transfers; the second as a transfer-id of the peer */
    uint32_t peer_in, peer_window;    /* the peer's next-incoming-id and incoming-window */
    link_end *first, *last;           /* links that may send */
    link_end *large;                  /* the link that is in the middle of a message */
    uint32_t large_size, large_offset;
    uint32_t next_id, oldest_id;      /* delivery-ids that were sent, and of those the first unsettled one */
    sent_delivery *sent;              /* a ring, by delivery-id */
    uint32_t ring;
    uint32_t range_first, range_last; /* receiver: deliveries to be told of */
    uint64_t beat_every, beat_at;
};

static connection *connections;
static link_end *all_links;
static uint64_t total_links;
static int poller = -1, listener = -1, timer = -1;
static uint8_t *content;              /* what messages are filled with; all begin alike */
static uint32_t largest;
static octets sections;               /* what is before the content, whose size is its last four octets */
static size_t bare_at;                /* where in them the bare message begins (part 3, §3.2) */
static uint8_t *incoming;             /* one buffer for what is read from any connection */
static size_t incoming_room;
static connection **listed;           /* connections that have something to write */
static unsigned listed_count;

static enum { ATTACHING, AWAITING_GO, RUNNING, HOLDING, AWAITING_END } phase;
static uint64_t started, begun, moved, first_at, last_at, skipped_at;
static uint64_t attached, ready_links, done, settled, lost, scheduled, payload_octets;
static uint64_t outcomes[4];
static bool closed;                   /* a peer has closed a connection */
static double cpu_begun;
static histogram latency, round_trip;

static uint32_t size_of(uint64_t number)
{
    uint32_t turn = (uint32_t)(number % opt.cycle);
    for (unsigned i = 0;; i++) {
        if (turn < opt.size[i].times) return opt.size[i].octets;
        turn -= opt.size[i].times;
    }
}

static uint64_t due(uint64_t turn) { return begun + (uint64_t)((double)turn * 1e9 / opt.rate); }

/* What is to be written is written once all that was read has been looked at. */
static void list(connection *c)
{
    if (c->listed) return;
    c->listed = true;
    listed[listed_count++] = c;
}

/* ---- the socket, plain or TLS ----------------------------------------------------------------------------------- */

static void watch(connection *c, bool writable)
{
    if (c->writable_wanted == writable) return;
    c->writable_wanted = writable;
    struct epoll_event event = {.events = EPOLLIN | (writable ? EPOLLOUT : 0), .data.ptr = c};
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) fail("epoll_ctl: %s", strerror(errno));
}

#ifdef WITH_TLS
static SSL_CTX *tls;

static void tls_begin(void)
{
    tls = SSL_CTX_new(opt.listens ? TLS_server_method() : TLS_client_method());
    SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(tls, 1);
    if (opt.listens && (SSL_CTX_use_certificate_chain_file(tls, opt.certificate) != 1 ||
                        SSL_CTX_use_PrivateKey_file(tls, opt.key, SSL_FILETYPE_PEM) != 1))
        fail("no certificate and key in %s, %s", opt.certificate, opt.key);
}

static void tls_connection(connection *c)
{
    c->ssl = SSL_new(tls);
    SSL_set_fd(c->ssl, c->fd);
    if (opt.listens) SSL_set_accept_state(c->ssl);
    else SSL_set_connect_state(c->ssl);
}

/* What OpenSSL's 0 or -1 means: 0 for the end of the stream, -1 for `not now`. */
static ssize_t tls_pause(connection *c, int result)
{
    if (c->state == CLOSED) return 0;
    switch (SSL_get_error(c->ssl, result)) {
    case SSL_ERROR_WANT_READ: case SSL_ERROR_WANT_WRITE: return -1;
    case SSL_ERROR_ZERO_RETURN: return 0;
    default: fail("TLS: %s", ERR_peek_error() ? ERR_reason_error_string(ERR_peek_error()) : strerror(errno));
    }
}

/* A handshake goes on with what is read: by a write it might take in what follows, and nobody would be told of that. */
static bool shakes_hands(const connection *c) { return c->ssl && !SSL_is_init_finished(c->ssl); }
#else
static bool shakes_hands(const connection *c) { return c->ssl; }
#endif

/* Octets read; 0: the peer has ended the stream; -1: nothing is there. */
static ssize_t read_some(connection *c, uint8_t *to, size_t room)
{
#ifdef WITH_TLS
    if (c->ssl) {
        size_t have = 0;
        ERR_clear_error();
        while (have < room) {
            int got = SSL_read(c->ssl, to + have, (int)(room - have));
            if (got > 0) have += (size_t)got;
            else return have ? (ssize_t)have : tls_pause(c, got);
        }
        return (ssize_t)have;
    }
#endif
    ssize_t got = read(c->fd, to, room);
    if (got < 0 && errno != EAGAIN && errno != EINTR) fail("read: %s", strerror(errno));
    return got;
}

/* Octets written, first of `out`, then of the tail; -1: none can be now. */
static ssize_t write_some(connection *c)
{
    struct iovec parts[2] = {
        {c->out.at + c->out.begin, c->out.end - c->out.begin}, {(void *)(uintptr_t)c->tail, c->tail_length},
    };
#ifdef WITH_TLS
    if (c->ssl) {
        const struct iovec *part = parts[0].iov_len ? &parts[0] : &parts[1];
        ERR_clear_error();
        int wrote = SSL_write(c->ssl, part->iov_base, (int)part->iov_len);
        if (wrote > 0) return wrote;
        if (!tls_pause(c, wrote)) fail("the peer ended the stream");
        return -1;
    }
#endif
    ssize_t wrote = writev(c->fd, parts, 2);
    if (wrote < 0 && errno != EAGAIN && errno != EINTR) fail("write: %s", strerror(errno));
    return wrote;
}

/* Where the next frame is to be put: never between a frame's head and its tail. */
static octets *next_frame(connection *c) { return c->tail_length ? &c->later : &c->out; }

/* Whether all is written. */
static bool flush_output(connection *c)
{
    if (shakes_hands(c)) {
        watch(c, false);
        return false;
    }
    while (c->out.end > c->out.begin || c->tail_length || c->later.end) {
        if (!c->tail_length && c->later.end) {
            put(&c->out, c->later.at, c->later.end);
            c->later.end = 0;
        }
        ssize_t wrote = write_some(c);
        if (wrote < 0) {
            watch(c, true);
            return false;
        }
        size_t some = (size_t)wrote, copied = c->out.end - c->out.begin;
        if (some < copied) copied = some;
        c->out.begin += copied;
        c->tail += some - copied, c->tail_length -= some - copied;
    }
    watch(c, false);
    return true;
}

/* ---- what both ends say ----------------------------------------------------------------------------------------- */

/* The address of a link: its number is in the place of the percent sign. */
static void address_of(uint32_t number, char *to, size_t room)
{
    const char *percent = strchr(opt.address, '%');
    int before = percent ? (int)(percent - opt.address) : 0;
    if (percent) snprintf(to, room, "%.*s%" PRIu32 "%s", before, opt.address, number, percent + 1);
    else snprintf(to, room, "%s", opt.address);
}

static void put_attach(octets *o, const link_end *l)
{
    char name[32], address[256];
    snprintf(name, sizeof name, "load-%" PRIu32, l->number);
    address_of(l->number, address, sizeof address);
    size_t frame = frame_begin(o, AMQP_FRAME), list = list_begin(o, ATTACH, opt.whole ? 12 : 10), terminus;
    put_text(o, 0xa1, name), put_uint(o, l->handle), put_boolean(o, !opt.sends);
    put_ubyte(o, opt.settled ? 1 : 0), put_ubyte(o, opt.second ? 1 : 0);
    for (unsigned descriptor = 0x28; descriptor <= 0x29; descriptor++) {
        bool asks = opt.lasting && opt.sends == (descriptor == 0x29); /* the peer's terminus is to outlive the link */
        terminus = list_begin(o, descriptor, asks ? 4 : 1);
        put_text(o, 0xa1, address);
        if (asks) put_null(o), put_text(o, 0xa3, "connection-close"), put_uint(o, opt.lasting);
        list_end(o, terminus);
    }
    put_null(o), put_null(o);         /* unsettled, incomplete-unsettled */
    if (opt.sends) put_uint(o, 0);
    else put_null(o);
    if (opt.whole) put_null(o), put_text(o, 0xa3, "amqpmesh:whole"); /* max-message-size, offered-capabilities */
    list_end(o, list), frame_end(o, frame);
}

/* Open, begin and all attaches, pipelined (§2.4.3). */
static void put_opening(connection *c)
{
    octets *o = &c->out;
    char container[64];
    const char *role = opt.sends ? "send" : "receive";
    snprintf(container, sizeof container, "load-%s-%d-%" PRIu32, role, (int)getpid(), c->number);
    put(o, "AMQP\0\1\0\0", 8);
    size_t frame = frame_begin(o, AMQP_FRAME), list = list_begin(o, OPEN, 3);
    put_text(o, 0xa1, container), put_text(o, 0xa1, opt.hostname), put_uint(o, opt.max_frame_size);
    list_end(o, list), frame_end(o, frame);
    frame = frame_begin(o, AMQP_FRAME), list = list_begin(o, BEGIN, 5);
    put_null(o), put_uint(o, 0), put_uint(o, WINDOW), put_uint(o, WINDOW), put_uint(o, opt.links ? opt.links - 1 : 0);
    list_end(o, list), frame_end(o, frame);
    if (!opt.listens)
        for (unsigned i = 0; i < opt.links; i++) put_attach(o, &c->links[i]);
}

static void put_sasl(octets *o)
{
    put(o, "AMQP\3\1\0\0", 8);
    size_t frame = frame_begin(o, SASL_FRAME), list = list_begin(o, INIT, 1);
    put_text(o, 0xa3, "ANONYMOUS"), list_end(o, list), frame_end(o, frame);
}

static void put_disposition(octets *o, bool from_receiver, uint32_t first, uint32_t last, bool settles)
{
    size_t frame = frame_begin(o, AMQP_FRAME), list = list_begin(o, DISPOSITION, 5);
    put_boolean(o, from_receiver), put_uint(o, first), put_uint(o, last), put_boolean(o, settles);
    put(o, (uint8_t[]){0, 0x53, ACCEPTED, 0x45}, 4);
    list_end(o, list), frame_end(o, frame);
}

/* Credit for as many messages as may be on their way to a receiver. */
static void give_credit(link_end *l)
{
    connection *c = l->connection;
    octets *o = &c->out;
    l->granted = l->done + opt.credit;
    size_t frame = frame_begin(o, AMQP_FRAME), list_at = list_begin(o, FLOW, 7);
    put_uint(o, c->frames_in), put_uint(o, WINDOW), put_uint(o, 0), put_uint(o, WINDOW);
    put_uint(o, l->handle), put_uint(o, (uint32_t)l->done), put_uint(o, opt.credit);
    list_end(o, list_at), frame_end(o, frame);
    list(c);
}

/* ---- a sender --------------------------------------------------------------------------------------------------- */

static int64_t window_left(const connection *c)
{
    return (int64_t)c->peer_window - (uint32_t)(c->frames_out - c->peer_in);
}

static bool may_send(const link_end *l)
{
    uint64_t most = l->allowed < l->count ? l->allowed : l->count;
    return phase == RUNNING && l->done < most && (uint32_t)((uint32_t)l->done - l->delivery_count) < l->credit;
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

static void remember(connection *c, const link_end *l, uint64_t due_at)
{
    if (c->next_id - c->oldest_id == c->ring) {
        uint32_t room = c->ring ? 2 * c->ring : 1024;
        sent_delivery *wider = enough(NULL, room * sizeof *wider);
        for (uint32_t id = c->oldest_id; id != c->next_id; id++) wider[id % room] = c->sent[id % c->ring];
        free(c->sent);
        c->sent = wider, c->ring = room;
    }
    c->sent[c->next_id % c->ring] = (sent_delivery){.link = l->number, .due = due_at};
}

/* The rest of a frame: content that begins at the offset, copied if it is short. */
static void put_content(connection *c, uint32_t offset, size_t length)
{
    if (length <= COPIED) put(&c->out, content + offset, length);
    else c->tail = content + offset, c->tail_length = length;
}

static void put_first_frame(connection *c, link_end *l, uint64_t due_at)
{
    octets *o = &c->out;
    uint32_t size = size_of(l->done);
    uint8_t *at = more_room(o, HEAD + sections.end + STAMP), *const frame = at;
    /* handle, delivery-id, delivery-tag, message-format, settled, more */
    memcpy(at, "\0\0\0\0\2\0\0\0\0\x53\x14\xc0\0\6\x70", 15);
    store32(at + 15, l->handle);
    at[19] = 0x70, store32(at + 20, c->next_id);
    at[24] = 0xa0, at[25] = 4, store32(at + 26, c->next_id);
    at[30] = 0x43, at[31] = opt.settled ? 0x41 : 0x42;
    at[12] = 33 - 13;                 /* octets of the list after this one */
    uint8_t *more = at + 32;
    at += 33;
    memcpy(at, sections.at, sections.end), at += sections.end;
    store32(at - 4, size);
    store64(at, due_at), store32(at + 8, l->number), store32(at + 12, (uint32_t)l->done), at += STAMP;
    size_t head = (size_t)(at - frame), rest = size - STAMP;
    if (rest > c->frame_size - head) rest = c->frame_size - head;
    bool is_whole = rest + STAMP == size;
    *more = is_whole ? 0x42 : 0x41;
    store32(frame, (uint32_t)(head + rest));
    o->end += head;
    put_content(c, STAMP, rest);
    if (!is_whole) c->large = l, c->large_size = size, c->large_offset = (uint32_t)(STAMP + rest);
}

static void put_next_frame(connection *c)
{
    octets *o = &c->out;
    uint8_t *at = more_room(o, HEAD);
    memcpy(at, "\0\0\0\0\2\0\0\0\0\x53\x14\xc0\x0b\6\x70\0\0\0\0\x40\x40\x40\x40", 23);
    store32(at + 15, c->large->handle);
    size_t rest = c->large_size - c->large_offset;
    if (rest > c->frame_size - 24) rest = c->frame_size - 24;
    bool is_last = c->large_offset + rest == c->large_size;
    at[23] = is_last ? 0x42 : 0x41;
    store32(at, (uint32_t)(24 + rest));
    o->end += 24;
    put_content(c, c->large_offset, rest);
    c->large_offset += (uint32_t)rest;
    if (is_last) queue(c->large), c->large = NULL;
}

static void send_next(connection *c, link_end *l, uint64_t now)
{
    uint64_t due_at = opt.rate > 0 ? due(l->done * total_links + l->number) : now;
    if (!opt.settled) remember(c, l, due_at);
    put_first_frame(c, l, due_at);
    payload_octets += size_of(l->done);
    c->next_id++, l->done++, done++;
}

/* Append what may be sent now, until enough waits to be written. */
static void fill(connection *c)
{
    uint64_t now = now_ns();
    while (!c->tail_length && c->out.end - c->out.begin < OUTPUT_FULL && window_left(c) > 0) {
        if (c->large) {
            put_next_frame(c);
            c->frames_out++;
            continue;
        }
        link_end *l = c->first;
        if (!l) return;
        c->first = l->next;
        if (!c->first) c->last = NULL;
        l->queued = false;
        for (unsigned burst = 0; burst < BURST && may_send(l) && window_left(c) > 0; burst++) {
            send_next(c, l, now);
            c->frames_out++;
            if (c->large || c->tail_length) break;
        }
        if (!c->large) queue(l);
    }
}

static bool is_sent(const connection *c)
{
    return !c->large && !c->tail_length && c->out.begin == c->out.end;
}

static void drive(connection *c)
{
    if (c->state == CONNECTING || c->state == CLOSED) return;
    do {
        if (opt.sends && phase == RUNNING) fill(c);
        if (!flush_output(c)) return;
    } while (opt.sends && phase == RUNNING && (c->large || c->first) && window_left(c) > 0);
}

/* Let those messages go that are due. */
static void follow_schedule(uint64_t now)
{
    for (; scheduled < opt.count && due(scheduled) <= now; scheduled++) {
        link_end *l = &all_links[scheduled % total_links];
        l->allowed++;
        queue(l);
    }
    uint64_t next = scheduled < opt.count ? due(scheduled) : 0; /* 0 stops it */
    struct itimerspec at = {.it_value = {(time_t)(next / SECOND), (long)(next % SECOND)}};
    timerfd_settime(timer, TFD_TIMER_ABSTIME, &at, NULL);
}

static void begin_sending(void)
{
    phase = RUNNING;
    begun = moved = now_ns(), cpu_begun = cpu_seconds();
    for (uint64_t i = 0; i < total_links; i++) {
        link_end *l = &all_links[i];
        l->allowed = opt.rate > 0 ? 0 : opt.outstanding ? opt.outstanding : NO_LIMIT;
        queue(l);
    }
    if (opt.rate > 0) follow_schedule(begun);
}

static void on_outcome(connection *c, fields *f)
{
    next_field(f);
    uint32_t first = next_uint(f, 0), last = next_uint(f, first);
    bool settles = next_boolean(f);
    const uint8_t *state = next_field(f), *end;
    fields ignored;
    unsigned code = state ? open_list(state, f->end, &ignored, &end) : 0;
    if ((int32_t)(last - c->next_id) >= 0 || (int32_t)(last - first) < 0)
        fail("an outcome for delivery %" PRIu32 ", which was not sent", last);
    uint64_t now = now_ns();
    for (uint32_t id = first; id != last + 1; id++) {
        if ((int32_t)(id - c->oldest_id) < 0) continue;
        sent_delivery *d = &c->sent[id % c->ring];
        link_end *l = &all_links[d->link];
        if (code >= ACCEPTED && code <= MODIFIED && !d->told) {
            outcomes[code - ACCEPTED]++, d->told = true;
            note(&round_trip, now - d->due);
        }
        if (!d->settled && (settles || d->told)) {
            d->settled = true, settled++;
            if (opt.outstanding) l->allowed++, queue(l);
        }
    }
    while (c->oldest_id != c->next_id && c->sent[c->oldest_id % c->ring].settled) c->oldest_id++;
    if (!settles && code >= ACCEPTED && code <= MODIFIED) {
        put_disposition(next_frame(c), false, first, last, true);
        list(c);
    }
}

/* ---- a receiver ------------------------------------------------------------------------------------------------- */

static void tell_range(connection *c)
{
    if (!c->has_range) return;
    put_disposition(&c->out, true, c->range_first, c->range_last, !opt.second);
    c->has_range = false;
    list(c);
}

static void accept_one(connection *c, uint32_t id)
{
    if (c->has_range && (opt.each || id != c->range_last + 1)) tell_range(c);
    if (!c->has_range) c->range_first = id, c->has_range = true;
    c->range_last = id;
}

/* A message's head: what is before its bare message is the router's to change, the rest is compared. */
static const uint8_t *on_head(link_end *l, const uint8_t *at, const uint8_t *end)
{
    while (end - at > 4 && !at[0] && at[1] == 0x53 && at[2] < 0x73) at += 3 + value_size(at + 3, end);
    size_t length = sections.end - bare_at;
    if ((size_t)(end - at) < length + STAMP)
        fail("link %" PRIu32 ": a message's first frame ends before its content", l->number);
    uint32_t number = load32(at + length + 12);
    if (load32(at + length + 8) != l->number)
        fail("link %" PRIu32 ": a message of link %" PRIu32 " came", l->number, load32(at + length + 8));
    if (opt.lossy && opt.settled && number > l->done && number < l->count)
        lost += number - l->done, l->granted += number - l->done, l->done = number;
    if (number != (uint32_t)l->done)
        fail("link %" PRIu32 ": message %" PRIu32 " came in the place of %" PRIu64, l->number, number, l->done);
    l->size = size_of(number);
    if (load32(at + length - 4) != l->size || memcmp(at, sections.at + bare_at, length - 4))
        fail("link %" PRIu32 ": the sections of message %" PRIu32 " are not as they were sent", l->number, number);
    l->due = load64(at + length);
    l->offset = STAMP;
    l->compared = l->size <= WHOLE_TO || number % WHOLE_EVERY == 0;
    return at + length + STAMP;
}

static void on_content(link_end *l, const uint8_t *at, size_t length)
{
    if (length > l->size - l->offset) fail("link %" PRIu32 ": message %" PRIu64 " is too long", l->number, l->done);
    const uint8_t *as_sent = content + l->offset;
    bool is_right = l->compared || length <= 2 * EDGE
        ? !memcmp(at, as_sent, length)
        : !memcmp(at, as_sent, EDGE) && !memcmp(at + length - EDGE, as_sent + length - EDGE, EDGE);
    if (!is_right)
        fail("link %" PRIu32 ": the content of message %" PRIu64 " is not as it was sent", l->number, l->done);
    l->offset += (uint32_t)length;
}

/* Links that have taken messages since credit was last looked at. */
static link_end *touched;

static void on_transfer(connection *c, fields *f, const uint8_t *payload, const uint8_t *end, uint64_t now)
{
    c->frames_in++;
    uint32_t handle = next_uint(f, 0);
    link_end *l = handle < c->handles ? c->by_handle[handle] : NULL;
    if (!l) fail("a transfer with handle %" PRIu32 ", which is no link's", handle);
    uint32_t id = next_uint(f, l->id);
    skip(f, 2);
    const uint8_t *said = next_field(f);
    bool more = next_boolean(f);
    skip(f, 3);
    if (next_boolean(f)) fail("link %" PRIu32 ": message %" PRIu64 " is aborted", l->number, l->done);
    if (!l->inside) {
        l->id = id;
        if (l->done >= l->count) fail("link %" PRIu32 ": more messages came than were sent", l->number);
        if ((said && (*said == 0x41 || (*said == 0x56 && said[1]))) != opt.settled)
            fail("link %" PRIu32 ": message %" PRIu64 " came %ssettled", l->number, l->done, opt.settled ? "un" : "");
        if (!first_at) first_at = skipped_at = now, cpu_begun = cpu_seconds();
        payload = on_head(l, payload, end);
        l->inside = true;
    }
    on_content(l, payload, (size_t)(end - payload));
    if (more) return;
    if (l->offset != l->size) fail("link %" PRIu32 ": message %" PRIu64 " is too short", l->number, l->done);
    l->inside = false;
    l->done++, done++, payload_octets += l->size;
    last_at = now;
    if (done > opt.skip) note(&latency, now > l->due ? now - l->due : 0);
    else skipped_at = now;
    if (!l->touched) l->touched = true, l->next = touched, touched = l;
    if (!opt.settled && !opt.holds) accept_one(c, id);
    else if (opt.holds) c->range_first = c->has_range ? c->range_first : id, c->range_last = id, c->has_range = true;
}

static void renew_credit(void)
{
    for (; touched; touched = touched->next) {
        touched->touched = false;
        if (touched->granted - touched->done <= opt.credit / 2 && touched->done < touched->count) give_credit(touched);
    }
}

/* Mode second: the sender has settled (§2.7.6). */
static void on_settled(fields *f)
{
    next_field(f);
    uint32_t first = next_uint(f, 0), last = next_uint(f, first);
    if (opt.second && next_boolean(f)) settled += last - first + 1;
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

/* Seconds that the peer's terminus outlives its link (§3.5.3, §3.5.4). Args: f: of an attach, behind the handle. */
static uint32_t lasting_of(fields *f)
{
    skip(f, opt.sends ? 4 : 3);       /* role, modes; the source before the target */
    const uint8_t *at = next_field(f), *next;
    fields terminus;
    if (!at) return 0;
    open_list(at, f->end, &terminus, &next);
    skip(&terminus, 3);
    return next_uint(&terminus, 0);
}

static void on_attach(connection *c, fields *f)
{
    const uint8_t *name = next_field(f);
    if (!name || (*name != 0xa1 && *name != 0xb1)) fail("an attach without a name");
    size_t head = *name == 0xa1 ? 2 : 5, length = value_size(name, f->end) - head;
    char text[32] = {0};
    memcpy(text, name + head, length < sizeof text ? length : sizeof text - 1);
    char *dash = strrchr(text, '-');
    uint64_t number = dash ? strtoull(dash + 1, NULL, 10) : NO_LIMIT;
    if (number >= total_links || all_links[number].attached) fail("an attach of %s, which is not expected", text);
    link_end *l = &all_links[number];
    uint32_t handle = next_uint(f, 0);
    if (opt.listens) l->connection = c, l->handle = handle; /* whichever connection it came by */
    else if (l->connection != c) fail("an attach of %s on the wrong connection", text);
    if (handle > 1 << 20) fail("a handle of %" PRIu32, handle);
    if (handle >= c->handles) {
        c->by_handle = enough(c->by_handle, (handle + 1) * sizeof *c->by_handle);
        while (c->handles <= handle) c->by_handle[c->handles++] = NULL;
    }
    c->by_handle[handle] = l;
    if (opt.lasting && !lasting_of(f)) fail("the peer keeps no terminus of %s", text);
    l->attached = true;
    attached++;
    if (opt.listens) put_attach(&c->out, l), list(c);
    if (!opt.sends) give_credit(l);
}

static void on_flow(connection *c, fields *f)
{
    c->peer_in = next_uint(f, 0), c->peer_window = next_uint(f, 0);
    skip(f, 2);
    uint32_t handle = next_uint(f, UINT32_MAX);
    if (opt.sends && handle < c->handles && c->by_handle[handle]) {
        link_end *l = c->by_handle[handle];
        bool had_credit = l->credit;
        l->delivery_count = next_uint(f, 0), l->credit = next_uint(f, 0);
        if (!had_credit && l->credit && phase == ATTACHING) ready_links++;
        queue(l);
    }
    list(c);
}

static void on_frame(connection *c, const uint8_t *frame, uint32_t size, uint64_t now)
{
    const uint8_t *at = frame + 4 * frame[4], *end = frame + size, *payload;
    if (at > end || frame[4] < 2) fail("a frame's head of %u words", frame[4]);
    if (at == end) return;            /* the peer lives */
    fields f;
    unsigned code = open_list(at, end, &f, &payload);
    switch (code) {
    case TRANSFER: on_transfer(c, &f, payload, end, now); break;
    case DISPOSITION:
        if (opt.sends) on_outcome(c, &f);
        else on_settled(&f);
        break;
    case FLOW: on_flow(c, &f); break;
    case OPEN:
        skip(&f, 2);
        c->frame_size = next_uint(&f, UINT32_MAX);
        if (c->frame_size > opt.max_frame_size) c->frame_size = opt.max_frame_size;
        skip(&f, 1);
        c->beat_every = (uint64_t)next_uint(&f, 0) * (SECOND / 1000) / 2;
        c->beat_at = now + c->beat_every;
        break;
    case BEGIN:
        skip(&f, 1);
        c->frames_in = next_uint(&f, 0), c->peer_window = next_uint(&f, 0);
        c->begun = true;
        if (!opt.links) attached++;
        break;
    case ATTACH: on_attach(c, &f); break;
    case MECHANISMS: break;
    case OUTCOME:
        if (next_uint(&f, 1)) fail("the peer refuses ANONYMOUS");
        c->authenticated = true, c->state = GREETING;
        put_opening(c), list(c);
        break;
    case CLOSE: case END: case DETACH:
        if (code != CLOSE || next_field(&f))
            fail("the peer said %s: %.*s", code == CLOSE ? "close" : code == END ? "end" : "detach", (int)(end - at),
                 (const char *)at);
        c->state = CLOSED;            /* whether it was too early is seen once all that was read has been looked at */
        closed = true;
        break;
    default: fail("a frame of type %#x", code);
    }
}

/* Returns: octets of whole frames, and of the protocol's head before them. */
static size_t on_octets(connection *c, const uint8_t *at, size_t length, uint64_t now)
{
    size_t taken = 0;
    while (length - taken >= 8) {
        const uint8_t *frame = at + taken;
        if (c->state == GREETING) {
            if (memcmp(frame, opt.sasl && !c->authenticated ? "AMQP\3\1\0\0" : "AMQP\0\1\0\0", 8))
                fail("the peer answered with the protocol %.4s %u", (const char *)frame, frame[4]);
            c->state = SPEAKING;
            taken += 8;
            continue;
        }
        uint32_t size = load32(frame);
        if (size < 8 || size > incoming_room / 2) fail("a frame of %" PRIu32 " octets", size);
        if (length - taken < size) break;
        on_frame(c, frame, size, now);
        taken += size;
    }
    return taken;
}

static void take_input(connection *c)
{
    size_t room, have;
    ssize_t got;
    if (c->ssl) list(c);              /* what is to be written waits for the handshake */
    do {
        have = c->rest.end;
        if (have) memcpy(incoming, c->rest.at, have);
        room = incoming_room - have;
        got = read_some(c, incoming + have, room);
        if (got < 0) return;
        if (!got && c->state != CLOSED) fail("the peer ended the stream");
        if (!got) {
            epoll_ctl(poller, EPOLL_CTL_DEL, c->fd, NULL);
            return;
        }
        uint64_t now = now_ns();
        moved = now;
        size_t taken = on_octets(c, incoming, have += (size_t)got, now);
        c->rest.end = 0;
        put(&c->rest, incoming + taken, have - taken);
        if (!opt.sends) {
            if (!opt.holds) tell_range(c);
            renew_credit();
        }
    } while (c->ssl && (size_t)got == room);
}

/* ---- from the beginning to the end ------------------------------------------------------------------------------ */

static void prepare_socket(connection *c, int fd)
{
    c->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    c->writable_wanted = true;
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl: %s", strerror(errno));
#ifdef WITH_TLS
    if (opt.tls) tls_connection(c);
#endif
}

static void greet(connection *c)
{
    c->state = GREETING;
    if (opt.sasl) put_sasl(&c->out);
    else put_opening(c);
    list(c);
}

static struct addrinfo *place(void)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int error = getaddrinfo(opt.host, opt.port, &hints, &found);
    if (error) fail("%s: %s", opt.host, gai_strerror(error));
    return found;
}

static void connect_all(void)
{
    struct addrinfo *to = place();
    for (unsigned i = 0; i < opt.connections; i++) {
        int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) fail("socket: %s", strerror(errno));
        if (connect(fd, to->ai_addr, to->ai_addrlen) && errno != EINPROGRESS) fail("connect: %s", strerror(errno));
        prepare_socket(&connections[i], fd);
    }
    freeaddrinfo(to);
}

static void begin_listening(void)
{
    struct sockaddr_in name = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        .sin_port = htons((uint16_t)opt.listening_port),
    };
    socklen_t length = sizeof name;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&name, length) || listen(listener, 4096) ||
        getsockname(listener, (struct sockaddr *)&name, &length))
        fail("listen: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &listener};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    printf("{\"ready\": true, \"url\": \"amqp%s://127.0.0.1:%u\"}\n", opt.tls ? "s" : "", ntohs(name.sin_port));
    fflush(stdout);
    phase = RUNNING;
}

static void accept_new(void)
{
    static unsigned accepted;
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        if (accepted == opt.connections) fail("more than %u connections came", accepted);
        connection *c = &connections[accepted++];
        prepare_socket(c, fd);
        greet(c);
    }
}

static void on_connected(connection *c)
{
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) fail("connect: %s", strerror(error));
    greet(c);
    if (c->ssl) take_input(c);        /* which begins the handshake */
}

/* From now on a line on stdin, or its end, is an event. */
static void await_stdin(void)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &phase};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, STDIN_FILENO, &event)) fail("stdin is no pipe");
}

static void say_result(void)
{
    uint64_t end = opt.sends ? now_ns() : last_at;
    double seconds = (double)(end - (opt.sends ? begun : skipped_at)) / 1e9;
    uint64_t counted = opt.sends ? done : done > opt.skip ? done - opt.skip : 0;
    printf("{\"role\": \"%s\", \"count\": %" PRIu64 ", \"octets\": %" PRIu64, opt.sends ? "sender" : "receiver", done,
           payload_octets);
    printf(", \"seconds\": %.6f, \"rate\": %.1f, \"cpu\": %.6f", seconds, seconds > 0 ? (double)counted / seconds : 0,
           cpu_seconds() - cpu_begun);
    if (opt.sends) {
        const char *names[] = {"accepted", "rejected", "released", "modified"}, *comma = "";
        printf(", \"outcomes\": {");
        for (unsigned i = 0; i < 4; i++)
            if (outcomes[i]) printf("%s\"%s\": %" PRIu64, comma, names[i], outcomes[i]), comma = ", ";
        printf("}");
        print_latency("round_trip_us", &round_trip);
    } else {
        printf(", \"lost\": %" PRIu64, lost);
        print_latency("latency_us", &latency);
    }
    printf("}\n");
    fflush(stdout);
}

/* Close all, and read until the peers have closed too, for a while. */
static void close_all(void)
{
    for (unsigned i = 0; i < opt.connections; i++) {
        connection *c = &connections[i];
        if (c->state != SPEAKING) continue;
        size_t frame = frame_begin(&c->out, AMQP_FRAME), list_at = list_begin(&c->out, CLOSE, 0);
        list_end(&c->out, list_at), frame_end(&c->out, frame);
        flush_output(c);
#ifdef WITH_TLS
        if (c->ssl) SSL_shutdown(c->ssl);
#endif
        shutdown(c->fd, SHUT_WR);
    }
    uint64_t until = now_ns() + 2ull * SECOND;
    for (unsigned i = 0; i < opt.connections; i++) {
        if (connections[i].state != SPEAKING) continue;
        fcntl(connections[i].fd, F_SETFL, 0);
        for (uint64_t now; (now = now_ns()) < until;) {
            uint64_t left_us = (until - now) / 1000 + 1;
            struct timeval most = {(time_t)(left_us / 1000000), (suseconds_t)(left_us % 1000000)};
            setsockopt(connections[i].fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
            if (read(connections[i].fd, incoming, incoming_room) <= 0) break;
        }
    }
    exit(0);
}

static void finish(void)
{
    say_result();
    if (!opt.waits) close_all();
    phase = AWAITING_END;
    await_stdin();
}

static bool is_done(void)
{
    if (opt.sends ? done < opt.count || (!opt.settled && settled < opt.count)
                  : done + lost < opt.count || (opt.second && settled < done)) return false;
    for (unsigned i = 0; i < opt.connections; i++)
        if (!is_sent(&connections[i]) && connections[i].state != CLOSED) return false;
    return true;
}

/* A peer that has closed a connection has left nothing to be done on it. */
static void look_for_unfinished(void)
{
    closed = false;
    for (uint64_t i = 0; i < total_links && !opt.lossy; i++) {
        const link_end *l = &all_links[i];
        const connection *c = l->connection;
        bool is_unsettled = !opt.settled && c->oldest_id != c->next_id; /* a sender's alone */
        if (l->attached && c->state == CLOSED && (l->done < l->count || is_unsettled))
            fail("link %" PRIu32 ": the peer has closed the connection after %" PRIu64 " of %" PRIu64 " messages",
                 l->number, l->done, l->count);
    }
}

/* What follows from what has happened since the last look. */
static void proceed(void)
{
    uint64_t wanted = opt.links ? total_links : opt.connections;
    if (phase == ATTACHING && attached >= wanted && (!opt.sends || ready_links == total_links)) {
        phase = opt.sends && opt.waits ? AWAITING_GO : RUNNING;
        printf("{\"ready\": true, \"seconds\": %.6f}\n", (double)(now_ns() - started) / 1e9);
        fflush(stdout);
        if (phase == AWAITING_GO) await_stdin();
        else if (opt.sends) begin_sending();
    }
    if (phase == RUNNING && opt.holds && done == opt.count) {
        phase = HOLDING;
        printf("{\"held\": %" PRIu64 "}\n", done);
        fflush(stdout);
        await_stdin();
    }
    for (unsigned i = 0; i < listed_count; i++) drive(listed[i]), listed[i]->listed = false;
    listed_count = 0;
    if (phase == RUNNING && is_done()) finish();
    if (closed) look_for_unfinished();
}

static void on_stdin(void)
{
    char line[256];
    if (read(STDIN_FILENO, line, sizeof line) < 0) fail("stdin: %s", strerror(errno));
    epoll_ctl(poller, EPOLL_CTL_DEL, STDIN_FILENO, NULL);
    if (phase == AWAITING_GO) begin_sending();
    else if (phase == AWAITING_END) close_all();
    else if (phase == HOLDING) {
        opt.holds = false, phase = RUNNING;
        for (unsigned i = 0; i < opt.connections; i++) tell_range(&connections[i]);
    }
}

/* Show peers that we live, and give up where nothing has moved for long. */
static void look_at_clock(uint64_t now)
{
    for (unsigned i = 0; i < opt.connections; i++) {
        connection *c = &connections[i];
        if (!c->beat_every || now < c->beat_at) continue;
        c->beat_at = now + c->beat_every;
        put(next_frame(c), "\0\0\0\x08\2\0\0\0", 8), list(c);
    }
    if (now < moved + (uint64_t)(opt.patience * 1e9) || (phase != RUNNING && phase != ATTACHING)) return;
    if (opt.lossy && done) {
        lost = opt.count - done;
        finish();
    } else if (phase == ATTACHING)
        fail("nothing came for %g s; %" PRIu64 " of %" PRIu64 " links attached, %" PRIu64 " with credit", opt.patience,
             attached, total_links, ready_links);
    else
        fail("nothing came for %g s; %" PRIu64 " of %" PRIu64 " %s, %" PRIu64 " settled", opt.patience, done, opt.count,
             opt.sends ? "sent" : "received", settled);
}

static void run(void)
{
    struct epoll_event events[EVENTS];
    uint64_t look_at = now_ns() + SECOND / 10;
    for (;;) {
        proceed();
        int count = epoll_wait(poller, events, EVENTS, 100);
        if (count < 0 && errno != EINTR) fail("epoll_wait: %s", strerror(errno));
        uint64_t now = now_ns();
        for (int i = 0; i < count; i++) {
            void *what = events[i].data.ptr;
            if (what == &listener) accept_new();
            else if (what == &phase) on_stdin();
            else if (what == &timer) follow_schedule(now), moved = now;
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

/* ---- messages and memory ---------------------------------------------------------------------------------------- */

/* Header, both kinds of annotations, properties, application properties: RICH octets with the head of the content. */
static void put_rich(octets *o)
{
    size_t at = list_begin(o, 0x70, 2);
    put_boolean(o, true), put_ubyte(o, 4), list_end(o, at);
    at = map_begin(o, 0x71, 1);
    put_text(o, 0xa3, "x-opt-load-trace"), put_text(o, 0xa1, "a1b2c3d4"), list_end(o, at);
    at = map_begin(o, 0x72, 1);
    put_text(o, 0xa3, "x-opt-load-key"), put_text(o, 0xa1, "key-7"), list_end(o, at);
    bare_at = o->end;
    at = list_begin(o, 0x73, 7);      /* message-id, user-id, to, subject, reply-to, correlation-id, content-type */
    put_text(o, 0xa1, "message-0000000001"), put_text(o, 0xa0, "load"), put_text(o, 0xa1, "bench");
    put_text(o, 0xa1, "readings"), put_text(o, 0xa1, "answers"), put_text(o, 0xa1, "correlation-0001");
    put_text(o, 0xa3, "application/octet-stream");
    list_end(o, at);
    at = map_begin(o, 0x74, 3);
    put_text(o, 0xa1, "site"), put_text(o, 0xa1, "north-west");
    put_text(o, 0xa1, "sensor"), put_byte(o, 0x71), put32(o, 4711);
    char filling[RICH] = {0};         /* as long as it takes */
    memset(filling, 'x', RICH - 8 - o->end - 6 - 2);
    put_text(o, 0xa1, "note"), put_text(o, 0xa1, filling), list_end(o, at);
}

static void make_message(void)
{
    if (opt.rich) put_rich(&sections);
    else {
        put(&sections, "\0\x53\x70\x45", 4); /* an empty header, as proton writes it */
        bare_at = sections.end;
    }
    put(&sections, "\0\x53\x75\xb0", 4), put32(&sections, 0);
    if (opt.rich && sections.end != RICH) fail("the sections have %zu octets", sections.end);
    content = enough(NULL, largest);
    uint32_t state = 1;
    for (uint32_t i = 0; i < largest; i++) content[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
}

static void make_links(void)
{
    total_links = (uint64_t)opt.connections * opt.links;
    connections = calloc(opt.connections, sizeof *connections);
    listed = calloc(opt.connections, sizeof *listed);
    all_links = calloc(total_links + 1, sizeof *all_links);
    incoming_room = 2 * (size_t)opt.max_frame_size + (1 << 18);
    incoming = enough(NULL, incoming_room);
    if (!connections || !listed || !all_links) fail("no memory for the links");
    for (unsigned i = 0; i < opt.connections; i++)
        connections[i] = (connection){.number = i, .links = all_links + (size_t)i * opt.links, .frame_size = 512};
    for (uint64_t i = 0; i < total_links; i++)
        all_links[i] = (link_end){
            .connection = &connections[i / opt.links], .number = (uint32_t)i, .handle = (uint32_t)(i % opt.links),
            .count = opt.count / total_links + (i < opt.count % total_links),
        };
}

/* ---- the command line ------------------------------------------------------------------------------------------- */

static const char *const USAGE =
    "loadgen send|receive --url amqp[s]://HOST:PORT [options]     or     loadgen receive --listen [options]\n"
    "  --port N            receive --listen: there, on 127.0.0.1; default: any that is free\n"
    "  --address TEXT      default bench-%: the number of the pair is in the place of %\n"
    "  --hostname TEXT     of open (section 2.7.1), default localhost\n"
    "  --connections N     default 1     --links N     on each, default 1; 0: connections only\n"
    "  --count N           messages in all, default 100000; 0: attach only\n"
    "  --size OCTETS       of content, at least 16, default 100; 100x99,65536: these in turn, the first 99 times\n"
    "  --rich              300 octets more: header, both kinds of annotations, properties, application properties\n"
    "  --settled           pre-settled           --second        receivers settle second (section 2.7.3)\n"
    "  --credit N          default 500           --each          a disposition for each message, not for ranges\n"
    "  --rate N            messages a second in all; default 0: as credit allows\n"
    "  --outstanding N     on each pair, the next one after an outcome; default 0: as credit allows\n"
    "  --lasting SECONDS   the peer is asked to keep its end of a link that is lost; it fails where the peer does not\n"
    "  --whole             our unsettled map would name what has come whole (amqpmesh:whole)\n"
    "  --skip N            receive: the first N messages count for neither rate nor latency\n"
    "  --hold              receive: settle nothing until all have come and a line is read\n"
    "  --lossy             receive: gaps between pre-settled messages are counted\n"
    "  --max-frame-size N  default 65536         --sasl          ANONYMOUS; default: none\n"
    "  --patience SECONDS  without any octet, default 60\n"
    "  --wait              for a line on stdin: before sending, and before closing\n"
    "  --certificate FILE --key FILE     receive --listen: with TLS\n";

__attribute__((noreturn)) static void usage(const char *wrong)
{
    fprintf(stderr, "loadgen: %s\n%s", wrong, USAGE);
    exit(2);
}

static uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*end || end == text || errno || *text == '-' || value < least || value > most) usage(text);
    return value;
}

static double seconds(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value >= 0 && value <= 1e9)) usage(text);
    return value;
}

static void parse_url(char *url)
{
    opt.tls = !strncmp(url, "amqps://", 8);
    if (!opt.tls && strncmp(url, "amqp://", 7)) usage(url);
    char *host = url + (opt.tls ? 8 : 7), *colon = strrchr(host, ':');
    if (!colon || colon[1] == 0) usage(url);
    *colon = 0;
    if (*host == '[' && colon[-1] == ']') host++, colon[-1] = 0;
    opt.host = host, opt.port = colon + 1;
}

static void parse_sizes(char *text)
{
    opt.sizes = opt.cycle = 0;
    for (char *part = strtok(text, ","); part; part = strtok(NULL, ",")) {
        char *times = strchr(part, 'x');
        if (times) *times++ = 0;
        if (opt.sizes == MOST_SIZES) usage("too many sizes");
        uint32_t size = (uint32_t)number(part, STAMP, 1 << 30);
        opt.size[opt.sizes].octets = size;
        opt.size[opt.sizes].times = times ? (uint32_t)number(times, 1, 1 << 20) : 1;
        opt.cycle += opt.size[opt.sizes++].times;
        if (size > largest) largest = size;
    }
    if (!opt.sizes) usage("no size");
}

static void parse(int argc, char **argv)
{
    enum {
        URL = 256, LISTEN, PORT, ADDRESS, CONNECTIONS, LINKS, COUNT, SIZE, RICH_SHAPE, SETTLED, SECOND_MODE, CREDIT,
        EACH, RATE, OUTSTANDING, SKIP, HOLD, LOSSY, MAX_FRAME_SIZE, SASL, PATIENCE, WAIT, CERTIFICATE, KEY,
        HOSTNAME, LASTING, WHOLE,
    };
    static const struct option known[] = {
        {"url", 1, 0, URL}, {"listen", 0, 0, LISTEN}, {"port", 1, 0, PORT}, {"address", 1, 0, ADDRESS},
        {"connections", 1, 0, CONNECTIONS}, {"links", 1, 0, LINKS}, {"count", 1, 0, COUNT}, {"size", 1, 0, SIZE},
        {"rich", 0, 0, RICH_SHAPE}, {"settled", 0, 0, SETTLED}, {"second", 0, 0, SECOND_MODE}, {"credit", 1, 0, CREDIT},
        {"each", 0, 0, EACH}, {"rate", 1, 0, RATE}, {"outstanding", 1, 0, OUTSTANDING}, {"skip", 1, 0, SKIP},
        {"hold", 0, 0, HOLD}, {"lossy", 0, 0, LOSSY}, {"max-frame-size", 1, 0, MAX_FRAME_SIZE}, {"sasl", 0, 0, SASL},
        {"patience", 1, 0, PATIENCE}, {"wait", 0, 0, WAIT}, {"certificate", 1, 0, CERTIFICATE}, {"key", 1, 0, KEY},
        {"hostname", 1, 0, HOSTNAME}, {"lasting", 1, 0, LASTING}, {"whole", 0, 0, WHOLE},
        {0, 0, 0, 0},
    };
    if (argc < 2 || (strcmp(argv[1], "send") && strcmp(argv[1], "receive"))) usage("send or receive?");
    opt.sends = !strcmp(argv[1], "send");
    role = opt.sends ? "sender" : "receiver";
    char standard[] = "100";
    parse_sizes(standard);
    int found;
    optind = 2;
    while ((found = getopt_long(argc, argv, "", known, NULL)) != -1)
        switch (found) {
        case URL: parse_url(optarg); break;
        case LISTEN: opt.listens = true; break;
        case PORT: opt.listening_port = (unsigned)number(optarg, 0, 65535); break;
        case ADDRESS: opt.address = optarg; break;
        case HOSTNAME: opt.hostname = optarg; break;
        case CONNECTIONS: opt.connections = (unsigned)number(optarg, 1, 1 << 20); break;
        case LINKS: opt.links = (unsigned)number(optarg, 0, 1 << 20); break;
        case COUNT: opt.count = number(optarg, 0, UINT32_MAX); break;
        case SIZE: largest = 0, parse_sizes(optarg); break;
        case RICH_SHAPE: opt.rich = true; break;
        case SETTLED: opt.settled = true; break;
        case SECOND_MODE: opt.second = true; break;
        case CREDIT: opt.credit = (unsigned)number(optarg, 1, INT32_MAX); break;
        case EACH: opt.each = true; break;
        case RATE: opt.rate = seconds(optarg); break;
        case OUTSTANDING: opt.outstanding = (unsigned)number(optarg, 0, 1 << 20); break;
        case LASTING: opt.lasting = (unsigned)number(optarg, 1, INT32_MAX); break;
        case WHOLE: opt.whole = true; break;
        case SKIP: opt.skip = number(optarg, 0, UINT32_MAX); break;
        case HOLD: opt.holds = true; break;
        case LOSSY: opt.lossy = true; break;
        case MAX_FRAME_SIZE: opt.max_frame_size = (unsigned)number(optarg, 512, 1 << 24); break;
        case SASL: opt.sasl = true; break;
        case PATIENCE: opt.patience = seconds(optarg); break;
        case WAIT: opt.waits = true; break;
        case CERTIFICATE: opt.certificate = optarg, opt.tls = opt.tls || !opt.sends; break;
        case KEY: opt.key = optarg; break;
        default: usage("an option is not known, or has no argument");
        }
    if (optind != argc) usage(argv[optind]);
    if (opt.listens ? opt.sends || opt.host || opt.sasl : !opt.host) usage("--url or, to receive, --listen?");
    if (opt.listens && opt.lasting) usage("who listens has its own termini: no --lasting");
    if (opt.listens && opt.tls && (!opt.certificate || !opt.key)) usage("TLS needs --certificate and --key");
    if (!strchr(opt.address, '%') && opt.connections * (uint64_t)opt.links > 1)
        usage("an address of several links needs a %");
    if (strlen(opt.address) > 200) usage("too long an address");
    if (strlen(opt.hostname) > 200) usage("too long a hostname");
    if (!opt.links && opt.count) usage("no links, so no messages: --count 0");
    if (opt.settled && (opt.second || opt.outstanding || opt.holds)) usage("what is pre-settled has no outcome");
    if (opt.outstanding && opt.rate > 0) usage("--outstanding or --rate?");
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* who measures may be killed */
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) files.rlim_cur = files.rlim_max, setrlimit(RLIMIT_NOFILE, &files);
    make_message();
    make_links();
    poller = epoll_create1(EPOLL_CLOEXEC);
    timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &timer};
    if (poller < 0 || timer < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, timer, &event)) fail("epoll: %s", strerror(errno));
#ifdef WITH_TLS
    if (opt.tls) tls_begin();
#else
    if (opt.tls) fail("built without OpenSSL's headers: no TLS");
#endif
    started = moved = begun = now_ns();
    cpu_begun = cpu_seconds();
    if (opt.listens) begin_listening();
    else connect_all();
    run();
}
