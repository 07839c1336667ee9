/* AMQP 1.0 as far as the load clients speak it: performatives are put together and taken apart here.
 *
 * It shares nothing with the router's engine: a fault there cannot hide itself here. Sections (§) are of the standard.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OPEN = 0x10, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE };
enum { MECHANISMS = 0x40, INIT = 0x41, OUTCOME = 0x44 };
enum { AMQP_FRAME = 0, SASL_FRAME = 1 };
enum { ACCEPTED = 0x24, REJECTED, RELEASED, MODIFIED };
enum { SECOND = 1000000000 };         /* nanoseconds */
#define WINDOW 0x7fffffffu            /* transfers that a session takes, as far as it says */

static const char *role = "client";   /* which fails, for its last words */

/* Say why, and end. */
__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *each = text; *each; each++)
        if (*each < ' ' || *each > '~' || *each == '"' || *each == '\\') *each = '.';
    printf("{\"failed\": \"%s: %s\"}\n", role, text);
    fflush(stdout);
    exit(1);
}

static inline uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static inline double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void *enough(void *memory, size_t octets)
{
    memory = realloc(memory, octets);
    if (!memory) fail("no memory for %zu octets", octets);
    return memory;
}

/* ---- octets that leave ------------------------------------------------------------------------------------------ */

typedef struct { uint8_t *at; size_t begin, end, room; } octets;

static inline uint8_t *more_room(octets *o, size_t length)
{
    if (o->begin == o->end) o->begin = o->end = 0;
    else if (o->begin > o->room / 2) { /* what is written makes room */
        memmove(o->at, o->at + o->begin, o->end -= o->begin);
        o->begin = 0;
    }
    if (o->room - o->end < length) o->at = enough(o->at, o->room = 2 * (o->end + length) + 4096);
    return o->at + o->end;
}

static inline void put(octets *o, const void *from, size_t length)
{
    memcpy(more_room(o, length), from, length);
    o->end += length;
}

static inline void put_byte(octets *o, unsigned value) { put(o, &(uint8_t){(uint8_t)value}, 1); }
static inline void store32(uint8_t *at, uint32_t value) { value = htonl(value); memcpy(at, &value, 4); }
static inline void store64(uint8_t *at, uint64_t value)
{
    store32(at, (uint32_t)(value >> 32)), store32(at + 4, (uint32_t)value);
}

static inline uint32_t load32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static inline uint64_t load64(const uint8_t *at) { return (uint64_t)load32(at) << 32 | load32(at + 4); }

static inline void put32(octets *o, uint32_t value)
{
    store32(more_room(o, 4), value);
    o->end += 4;
}

static inline void put_null(octets *o) { put_byte(o, 0x40); }
static inline void put_boolean(octets *o, bool value) { put_byte(o, value ? 0x41 : 0x42); }
static inline void put_ubyte(octets *o, unsigned value) { put_byte(o, 0x50), put_byte(o, value); }
static inline void put_uint(octets *o, uint32_t value)
{
    if (!value) put_byte(o, 0x43);
    else if (value < 256) put_byte(o, 0x52), put_byte(o, value);
    else put_byte(o, 0x70), put32(o, value);
}

/* A string (0xa1), symbol (0xa3) or binary (0xa0) of up to 255 octets. */
static inline void put_text(octets *o, unsigned code, const char *text)
{
    put_byte(o, code), put_byte(o, (unsigned)strlen(text)), put(o, text, strlen(text));
}

/* A described list or map of so many values, which follow; `list_end` writes its size. Returns: where that is. */
static inline size_t compound_begin(octets *o, unsigned descriptor, unsigned constructor, unsigned values)
{
    put(o, (uint8_t[]){0, 0x53, (uint8_t)descriptor, (uint8_t)constructor}, 4);
    put32(o, 0), put32(o, values);
    return o->end - 8 - o->begin;
}

static inline size_t list_begin(octets *o, unsigned descriptor, unsigned fields)
{
    return compound_begin(o, descriptor, 0xd0, fields);
}

static inline size_t map_begin(octets *o, unsigned descriptor, unsigned pairs)
{
    return compound_begin(o, descriptor, 0xd1, 2 * pairs);
}

static inline void list_end(octets *o, size_t size_at)
{
    store32(o->at + o->begin + size_at, (uint32_t)(o->end - o->begin - size_at - 4));
}

static inline size_t frame_begin(octets *o, unsigned type)
{
    put32(o, 0), put(o, (uint8_t[]){2, (uint8_t)type, 0, 0}, 4);
    return o->end - 8 - o->begin;
}

static inline void frame_end(octets *o, size_t at) { store32(o->at + o->begin + at, (uint32_t)(o->end - o->begin - at)); }

/* ---- octets that came ------------------------------------------------------------------------------------------- */

/* How many octets the value takes that begins here (§1.6). */
static inline size_t value_size(const uint8_t *at, const uint8_t *end)
{
    if (at >= end) fail("a value is cut off");
    size_t left = (size_t)(end - at), size;
    if (*at == 0) {
        size = 1 + value_size(at + 1, end);
        return size + value_size(at + size, end);
    }
    switch (*at >> 4) {
    case 4: size = 1; break;
    case 5: size = 2; break;
    case 6: size = 3; break;
    case 7: size = 5; break;
    case 8: size = 9; break;
    case 9: size = 17; break;
    case 0xa: case 0xc: case 0xe: size = left < 2 ? SIZE_MAX : 2u + at[1]; break;
    case 0xb: case 0xd: case 0xf: size = left < 5 ? SIZE_MAX : 5u + (size_t)load32(at + 1); break;
    default: fail("a value has the unknown constructor %#x", *at);
    }
    if (size > left) fail("a value is cut off");
    return size;
}

/* The fields of a described list that have not been read yet. */
typedef struct { const uint8_t *at, *end; uint32_t left; } fields;

/* Args: next: where the list ends. Returns: its descriptor. */
static inline unsigned open_list(const uint8_t *at, const uint8_t *end, fields *f, const uint8_t **next)
{
    unsigned code = 0;
    if (end - at < 4 || *at) fail("no described list where one should be");
    if (at[1] == 0x53) code = at[2], at += 3;
    else if (at[1] == 0x80 && end - at > 10) code = at[9], at += 10;
    else fail("a descriptor of constructor %#x", at[1]);
    size_t size = value_size(at, end);
    *next = at + size;
    switch (*at) {
    case 0x45: *f = (fields){at + 1, *next, 0}; break;
    case 0xc0: if (size < 3) fail("a list without a count"); *f = (fields){at + 3, *next, at[2]}; break;
    case 0xd0: if (size < 9) fail("a list without a count"); *f = (fields){at + 9, *next, load32(at + 5)}; break;
    default: fail("a list of constructor %#x", *at);
    }
    return code;
}

/* The next field, NULL where it is null or missing. */
static inline const uint8_t *next_field(fields *f)
{
    if (!f->left) return NULL;
    f->left--;
    const uint8_t *at = f->at;
    f->at += value_size(at, f->end);
    return *at == 0x40 ? NULL : at;
}

static inline void skip(fields *f, unsigned count) { while (count--) next_field(f); }

static inline uint32_t next_uint(fields *f, uint32_t otherwise)
{
    const uint8_t *at = next_field(f);
    if (!at) return otherwise;
    switch (*at) {
    case 0x43: return 0;
    case 0x52: case 0x50: return at[1];
    case 0x60: return (uint32_t)(at[1] << 8 | at[2]);
    case 0x70: return load32(at + 1);
    default: fail("a number of constructor %#x", *at);
    }
}

static inline bool next_boolean(fields *f)
{
    const uint8_t *at = next_field(f);
    return at && (*at == 0x41 || (*at == 0x56 && at[1]));
}
