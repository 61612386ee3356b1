import { trimSpace, valuesOf } from './http.js';
import { readBody } from './json.js';
const PATH = '/plants';
/** Below it the body is not read. */
const DISCARD_MAX_BYTES = 64 * 1024;
/** Errors that are found in the body, or behind it. */
const BEHIND_BODY = new Set([
    200, 40005, 40006, 40007, 40008, 40009, 40010, 40901, 50302, 50701,
]);
/**
 * The errors of a request in the order of the design's checks. Where it is silent, the error is a
 * doubt, and the checks go on.
 */
export function judge(request, realm) {
    const doubts = [...request.doubts, ...request.broken];
    const finally_ = (...errors) => ({
        errors: [...doubts, ...errors],
        wish: undefined,
    });
    const { method, version } = request;
    if (version !== '1.1' && version !== '1.0')
        return finally_(40001);
    // Its Host need not be looked at.
    if (method === 'CONNECT')
        return finally_(40002, 50101);
    const hosts = valuesOf(request, 'host');
    // RFC 3986 §3.2.2.
    if (hosts.length !== 1 || !/^[A-Za-z0-9\-._~!$&'()*+,;=:[\]%]*$/.test(hosts[0] ?? ''))
        return finally_(40002);
    // RFC 9110 §4.2: without a host, or with user info, it is no URL that leads here.
    const origin = request.target.replace(/^https?:\/\/[^/?#@]+/i, '');
    const [path = '', ...rest] = origin.split('?');
    if (path !== PATH)
        return finally_(40401);
    if (method === 'OPTIONS')
        return { errors: doubts, wish: { kind: 'options' } };
    if (method === 'PUT' || method === 'PATCH' || method === 'DELETE')
        return finally_(40501);
    if (method !== 'GET' && method !== 'HEAD' && method !== 'POST')
        return finally_(50101);
    const credentials = readCredentials(valuesOf(request, 'authorization'));
    if (typeof credentials === 'number')
        return finally_(credentials);
    const grant = realm.grants.get(credentials.token);
    if (!grant)
        return finally_(40102, 40103, 40104);
    if (!(method === 'POST' ? grant.write : grant.read))
        return finally_(40301);
    const expectations = valuesOf(request, 'expect');
    if (version === '1.1' && expectations.length > 0 && !expectsContinue(request))
        return finally_(41701);
    if (method !== 'POST')
        return list(grant.owner, rest.join('?'), doubts);
    const types = valuesOf(request, 'content-type');
    if (types.length > 1)
        return finally_(40004);
    const type = types[0] === undefined ? 'other' : readMediaType(types[0]);
    if (type === 'other')
        return finally_(41501);
    if (type === 'doubtful')
        doubts.push(41501);
    const codings = [
        ...valuesOf(request, 'content-encoding'),
        ...valuesOf(request, 'transfer-encoding').filter((value) => value.toLowerCase() !== 'chunked'),
    ];
    if (codings.some((coding) => coding.toLowerCase() !== 'identity'))
        return finally_(41502);
    if (Math.max(request.declared, request.body.length) > realm.maxBodyBytes)
        return finally_(41301);
    if (request.broken.length > 0)
        return { errors: doubts, wish: undefined };
    const body = readBody(request.body);
    if ('errors' in body)
        return finally_(...body.errors);
    return { errors: doubts, wish: { kind: 'create', owner: grant.owner, ...body } };
}
function list(owner, query, doubts) {
    const given = (name) => query.split('&').flatMap((pair) => {
        const [key = '', ...value] = pair.split('=');
        return decode(key) === name ? [decode(value.join('='))] : [];
    });
    const [limits, cursors] = [given('limit'), given('after')];
    const errors = [...doubts];
    if (limits.length > 1 ||
        (limits[0] !== undefined && !(/^\d{1,10}$/.test(limits[0]) && Number(limits[0]) < 2 ** 31)))
        errors.push(40011);
    if (cursors.length > 1 || cursors[0] === '')
        errors.push(40012);
    if (errors.length > doubts.length)
        return { errors, wish: undefined };
    return {
        errors,
        wish: {
            kind: 'list',
            owner,
            limit: limits[0] === undefined ? undefined : Number(limits[0]),
            after: cursors[0],
        },
    };
}
/** Percent-decoding, as forms have it; what is no good encoding stands for itself. */
function decode(text) {
    return text
        .replaceAll('+', ' ')
        .replace(/(?:%[0-9A-Fa-f]{2})+/g, (run) => Buffer.from(run.replaceAll('%', ''), 'hex').toString('utf8'));
}
/** A token, or the error that stands for what is there instead. */
function readCredentials(values) {
    if (values.length > 1)
        return 40003;
    const value = values[0] ?? '';
    if (!/^bearer(?![!#$%&'*+\-.^_`|~0-9A-Za-z])/i.test(value))
        return 40101;
    const token = /^[^ ]{6} +([A-Za-z0-9\-._~+/]+=*)$/.exec(value)?.[1];
    return token === undefined ? 40003 : { token };
}
/**
 * RFC 9110 §8.3.1; an empty parameter is allowed by §5.6.6 and by nobody's tests, and what is no
 * parameter at all by neither.
 */
function readMediaType(value) {
    const [essence = '', ...parameters] = value.split(';');
    if (trimSpace(essence).toLowerCase() !== 'application/json')
        return 'other';
    if (value.includes('"') ||
        parameters.some((text) => !/^[ \t]*[!#$%&'*+\-.^_`|~0-9A-Za-z]+=[!#$%&'*+\-.^_`|~0-9A-Za-z]+[ \t]*$/.test(text)))
        return 'doubtful';
    const charsets = parameters
        .map((text) => trimSpace(text).toLowerCase())
        .filter((text) => text.startsWith('charset='));
    return charsets.every((text) => text === 'charset=utf-8') ? 'json' : 'other';
}
export function expectsContinue(request) {
    const expectations = valuesOf(request, 'expect');
    return (request.version === '1.1' &&
        expectations.length === 1 &&
        expectations[0]?.toLowerCase() === '100-continue');
}
/**
 * Whether the connection ends behind an answer, 200 or the value of `error`; `either` where the
 * design leaves it open.
 */
export function closesBehind(request, outcome) {
    if (!/^1\.[01]$/.test(request.version))
        return true;
    // An error that HEAD does not show may be one of the parser's.
    if (outcome % 100 === 0 &&
        request.doubts.some((error) => Math.floor(error / 100) * 100 === outcome))
        return 'either';
    if (outcome === 40801 ||
        outcome === 41301 ||
        outcome === 43101 ||
        outcome === 40001 ||
        request.method === 'CONNECT')
        return true;
    const tokens = valuesOf(request, 'connection')
        .join(',')
        .toLowerCase()
        .split(',')
        .map((token) => trimSpace(token));
    if (valuesOf(request, 'upgrade').length > 0)
        return true;
    // A proxy's field of old, which llhttp heeds.
    if (valuesOf(request, 'proxy-connection').length > 0)
        return 'either';
    if (request.version === '1.0' && tokens.includes('keep-alive'))
        return 'either';
    if (request.version === '1.0' || tokens.includes('close'))
        return true;
    if (request.broken.length > 0)
        return 'either';
    const isRead = request.method === 'POST' && BEHIND_BODY.has(outcome);
    const hasBody = request.framing === 'chunked' || request.declared > 0;
    if (isRead)
        return false;
    // RFC 9110 §10.1.1: a client that was not told to go on may send its body, or not.
    if (valuesOf(request, 'expect').length > 0)
        return hasBody && expectsContinue(request) ? true : 'either';
    if (!hasBody)
        return false;
    return Math.max(request.declared, request.body.length) > DISCARD_MAX_BYTES;
}
