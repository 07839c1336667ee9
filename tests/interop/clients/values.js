// AMQP values of the rhea clients as typed JSON; the form is described in values.py.
'use strict';

const {types} = require('rhea');

// rhea names encodings; the standard, types.
const TYPE_NAMES = {
    Null: 'null', Boolean: 'boolean', True: 'boolean', False: 'boolean', Ubyte: 'ubyte', Ushort: 'ushort',
    Uint: 'uint', SmallUint: 'uint', Uint0: 'uint', Ulong: 'ulong', SmallUlong: 'ulong', Ulong0: 'ulong',
    Byte: 'byte', Short: 'short', Int: 'int', SmallInt: 'int', Long: 'long', SmallLong: 'long', Float: 'float',
    Double: 'double', Decimal32: 'decimal32', Decimal64: 'decimal64', Decimal128: 'decimal128', CharUTF32: 'char',
    Timestamp: 'timestamp', Uuid: 'uuid', Vbin8: 'binary', Vbin32: 'binary', Str8: 'string', Str32: 'string',
    Sym8: 'symbol', Sym32: 'symbol', List0: 'list', List8: 'list', List32: 'list', Map8: 'map', Map32: 'map',
    Array8: 'array', Array32: 'array',
};

const WIDEST = {
    boolean: 'Boolean', ubyte: 'Ubyte', ushort: 'Ushort', uint: 'Uint', ulong: 'Ulong', byte: 'Byte', short: 'Short',
    int: 'Int', long: 'Long', float: 'Float', double: 'Double', decimal32: 'Decimal32', decimal64: 'Decimal64',
    decimal128: 'Decimal128', char: 'CharUTF32', timestamp: 'Timestamp', uuid: 'Uuid', binary: 'Vbin32',
    string: 'Str32', symbol: 'Sym32', list: 'List32', map: 'Map32',
};

function integer(value, signed) {
    if (value instanceof Date) return String(value.getTime());
    if (!Buffer.isBuffer(value)) return String(value);
    return String(signed ? value.readBigInt64BE() : value.readBigUInt64BE());
}

function ieee(value, size) {
    const octets = Buffer.alloc(size);
    if (size === 4) octets.writeFloatBE(value);
    else octets.writeDoubleBE(value);
    return octets.toString('hex');
}

function pairs(items) {
    const found = [];
    for (let i = 0; i < items.length; i += 2) found.push([toJson(items[i]), toJson(items[i + 1])]);
    return found;
}

function plain(name, value) {
    switch (name) {
    case 'null': return ['null'];
    case 'boolean': return [name, Boolean(value)];
    case 'float': return [name, ieee(value, 4)];
    case 'double': return [name, ieee(value, 8)];
    case 'long': return [name, integer(value, true)];
    case 'string': case 'symbol': return [name, value];
    case 'binary': case 'uuid': case 'decimal32': case 'decimal64': case 'decimal128':
        return [name, value.toString('hex')];
    case 'list': return [name, value.map(toJson)];
    case 'map': return [name, pairs(value)];
    default: return [name, integer(value, false)];
    }
}

// What rhea's reader gives (its typed values, not their unwrapped form), as typed JSON.
function toJson(typed) {
    if (typed.descriptor !== undefined) {
        const bare = Object.assign(Object.create(Object.getPrototypeOf(typed)), typed);
        bare.descriptor = undefined;
        return ['described', toJson(typed.descriptor), toJson(bare)];
    }
    const name = TYPE_NAMES[typed.type.name];
    if (name !== 'array') return plain(name, typed.value);
    const {typecode, descriptor} = typed.array_constructor;
    const kind = TYPE_NAMES[types.by_code[typecode].name];
    const elements = typed.value.map(element => plain(kind, element.value));
    return ['array', kind, descriptor ? elements.map(e => ['described', toJson(descriptor), e]) : elements];
}

function bigInteger(text, signed) {
    const value = BigInt(text);
    if (value <= BigInt(Number.MAX_SAFE_INTEGER) && value >= BigInt(Number.MIN_SAFE_INTEGER)) return Number(value);
    const octets = Buffer.alloc(8);
    if (signed) octets.writeBigInt64BE(value);
    else octets.writeBigUInt64BE(value);
    return octets;
}

// The JavaScript value that rhea's writer wants for a type, without its encoding.
function bare([name, value]) {
    switch (name) {
    case 'float': return Buffer.from(value, 'hex').readFloatBE();
    case 'double': return Buffer.from(value, 'hex').readDoubleBE();
    case 'ulong': return bigInteger(value, false);
    case 'long': case 'timestamp': return bigInteger(value, true);
    case 'boolean': case 'string': case 'symbol': return value;
    case 'binary': case 'uuid': case 'decimal32': case 'decimal64': case 'decimal128': return Buffer.from(value, 'hex');
    case 'list': return value.map(fromJson);
    case 'map': return value.flat().map(fromJson);
    default: return Number(value);
    }
}

// What rhea writes as this typed JSON: its most compact encoding where it has a function for that.
function fromJson(typed) {
    const [name, value] = typed;
    switch (name) {
    case 'null': return types.wrap(null);
    case 'described': return types.described_nc(fromJson(value), fromJson(typed[2]));
    case 'array': {
        let elements = typed[2];
        let descriptor;
        if (elements.length && elements[0][0] === 'described') {
            descriptor = fromJson(elements[0][1]);
            elements = elements.map(e => e[2]);
        }
        return types.wrap_array(elements.map(bare), types[WIDEST[value]].typecode, descriptor);
    }
    case 'decimal32': case 'decimal64': case 'decimal128': case 'map':
        return types[WIDEST[name]](bare(typed));
    case 'list':
        return value.length ? types.List32(bare(typed)) : types.List0();
    default: return types['wrap_' + name](bare(typed));
    }
}

// A map of the application as rhea's API takes it: an object whose values are typed.
function objectOf([, items]) {
    return Object.fromEntries(items.map(([key, value]) => [key[1], fromJson(value)]));
}

// The sections of an encoded message, in the order of the wire: [[descriptor code, value], ...].
function sections(encoded) {
    const reader = new types.Reader(encoded);
    const found = [];
    while (reader.remaining()) {
        const [, descriptor, value] = toJson(reader.read());
        found.push([Number(descriptor[1]), value]);
    }
    return found;
}

module.exports = {toJson, fromJson, objectOf, sections};
