import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Condition } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { CHUNKED, chunks, head, posting, Wire } from '../support/wire.ts'

/*
 * Where a request ends. If a proxy and this service disagree on it, an attacker can make a part of
 * one client's request look like another client's (RFC 9112 §11.2). Each shape is followed by a
 * second request: it must be answered as such, or not at all and the connection closes.
 */

const BODY = '{"id":1,"name":"smuggled"}'
const SIZE = BODY.length.toString(16)
const CHUNKS = chunks(BODY)
const LENGTH = `Content-Length: ${BODY.length}`
const WEBSOCKET = ['Connection: upgrade', 'Upgrade: websocket']
const NEXT = head('GET', '/trees')
const GOOD = head('GET', '/plants')

interface Shape {
  readonly bytes: string
  /** The verdicts, in order. After a single one the connection must close. */
  readonly answers: readonly (Condition | number)[]
  /** True if the plant in the body is created. */
  readonly created?: boolean
}

const get = (...lines: readonly string[]): string => head('GET', '/plants', { lines })
/** A POST with this body and these headers. */
const post = (body: string, ...lines: readonly string[]): string => posting(lines) + body
/** A POST with these chunks. */
const chunked = (body: string): string => post(body, CHUNKED)
/** A POST with one good chunk, and what follows it. */
const ending = (end: string): string => chunked(`${SIZE}\r\n${BODY}\r\n${end}`)
/** A POST whose only chunk has this line for its size. */
const sized = (size: string): string => chunked(`${size}${BODY}\r\n0\r\n\r\n`)
const old = (bytes: string): string => bytes.replace('HTTP/1.1', 'HTTP/1.0')
/** A request whose body looks like a request. */
const hiding = (method: string): string =>
  head(method, '/plants', { lines: [`Content-Length: ${GOOD.length}`] }) + GOOD

const refused = (bytes: string): Shape => ({ bytes, answers: ['malformedRequest'] })
const taken = (bytes: string): Shape => ({ bytes, answers: [200, 'pathUnknown'], created: true })
const answered = (bytes: string, ...answers: readonly (Condition | number)[]): Shape => ({
  bytes,
  answers: [...answers, 'pathUnknown'],
})
const badCoding = (bytes: string): Shape => answered(bytes, 'contentEncodingUnsupported')
const last = (bytes: string, answer: Condition | number = 200): Shape => ({
  bytes,
  answers: [answer],
})
const lastCreated = (bytes: string): Shape => ({ ...last(bytes), created: true })

const SHAPES: Readonly<Record<string, Readonly<Record<string, Shape>>>> = {
  'Transfer-Encoding': {
    chunked: taken(chunked(CHUNKS)),
    'in capitals': taken(post(CHUNKS, 'TRANSFER-ENCODING: CHUNKED')),
    'after a tab': taken(post(CHUNKS, 'Transfer-Encoding:\tchunked')),
    'identity, then chunked': refused(post(CHUNKS, 'Transfer-Encoding: identity', CHUNKED)),
    'gzip, then chunked': refused(post(CHUNKS, 'Transfer-Encoding: gzip', CHUNKED)),
    'empty, then chunked': refused(post(CHUNKS, 'Transfer-Encoding:', CHUNKED)),
    'chunked, then identity': refused(post(CHUNKS, CHUNKED, 'Transfer-Encoding: identity')),
    'chunked twice': refused(post(CHUNKS, CHUNKED, CHUNKED)),
    'chunked twice in a line': refused(post(CHUNKS, 'Transfer-Encoding: chunked, chunked')),
    empty: refused(post('', 'Transfer-Encoding:')),
    'empty, with a Content-Length': refused(post(BODY, 'Transfer-Encoding:', LENGTH)),
    'empty after a Content-Length': refused(post(BODY, LENGTH, 'Transfer-Encoding:')),
    'empty, on a GET': refused(get('Transfer-Encoding:', 'Content-Length: 5') + 'abcde'),
    'with an empty element before': badCoding(post(CHUNKS, 'Transfer-Encoding: , chunked')),
    'gzip before it': badCoding(post(CHUNKS, 'Transfer-Encoding: gzip, chunked')),
    'identity before it': badCoding(post(CHUNKS, 'Transfer-Encoding: identity, chunked')),
    'with an empty element at the end': refused(post(CHUNKS, 'Transfer-Encoding: chunked,')),
    'with a parameter': refused(post(CHUNKS, 'Transfer-Encoding: chunked;a=b')),
    'longer than what is read': refused(
      post(CHUNKS, `Transfer-Encoding: ${'x'.repeat(248)}, chunked`),
    ),
    quoted: refused(post(CHUNKS, 'Transfer-Encoding: "chunked"')),
    'almost chunked': refused(post(CHUNKS, 'Transfer-Encoding: xchunked')),
    'after a vertical tab': refused(post(CHUNKS, 'Transfer-Encoding: \x0bchunked')),
    'a space before its colon': refused(post(CHUNKS, 'Transfer-Encoding : chunked')),
    folded: refused(post(CHUNKS, 'Transfer-Encoding:\r\n chunked')),
    identity: refused(post('', 'Transfer-Encoding: identity')),
    'chunked, then gzip in a line': refused(post('', 'Transfer-Encoding: chunked, gzip')),
    'in HTTP/1.0': refused(old(chunked(CHUNKS))),
    'in HTTP/1.0 kept alive': refused(old(post(CHUNKS, CHUNKED, 'Connection: keep-alive'))),
    'and an upgrade': lastCreated(post(CHUNKS, CHUNKED, ...WEBSOCKET)),
  },
  'Content-Length': {
    'with leading zeros': taken(post(BODY, `Content-Length: 0000${BODY.length}`)),
    empty: refused(post('', 'Content-Length:')),
    'with a space inside': refused(post(BODY, 'Content-Length: 2 6')),
    'with an underscore inside': refused(post(BODY, 'Content-Length: 2_6')),
    'with a fraction': refused(post(BODY, 'Content-Length: 26.0')),
    'with an exponent': refused(post(BODY, 'Content-Length: 26e0')),
    'after a vertical tab': refused(post(BODY, 'Content-Length: \x0b26')),
    'past 2^64': refused(post(BODY, `Content-Length: ${2n ** 64n + BigInt(BODY.length)}`)),
    folded: refused(post(BODY, 'Content-Length:\r\n 26')),
    'and another one': refused(post('abcdef', 'Content-Length: 5', 'Content-Length: 6')),
    twice: refused(post('abcde', 'Content-Length: 5', 'Content-Length: 5')),
    'twice in a line': refused(post('abcde', 'Content-Length: 5, 5')),
    'below zero': refused(post('', 'Content-Length: -1')),
    'with a sign': refused(post('abcde', 'Content-Length: +5')),
    'in hexadecimal': refused(post('abcde', 'Content-Length: 0x5')),
    'of 30 digits': refused(post('', `Content-Length: ${'9'.repeat(30)}`)),
    'before a Transfer-Encoding': refused(post('0\r\n\r\n', 'Content-Length: 5', CHUNKED)),
    'after a Transfer-Encoding': refused(post('0\r\n\r\n', CHUNKED, 'Content-Length: 5')),
    'underscores in its name': taken(
      post(BODY, 'Content_Length: 5', 'Transfer_Encoding: chunked', LENGTH),
    ),
    'named in Connection': taken(post(BODY, 'Connection: Content-Length', LENGTH)),
  },
  chunks: {
    'sizes with leading zeros': taken(
      chunked(`${'0'.repeat(40)}${SIZE}\r\n${BODY}\r\n000\r\n\r\n`),
    ),
    'in capitals': taken(sized(`${SIZE.toUpperCase()}\r\n`)),
    'an extension of 16,000 bytes': taken(sized(`${SIZE};${'x'.repeat(16_000)}\r\n`)),
    'an extension of 64 KiB': refused(sized(`${SIZE};${'x'.repeat(65_536)}\r\n`)),
    'an extension that ends in LF alone': refused(sized(`${SIZE};a\n`)),
    'an extension with a bare CR': refused(sized(`${SIZE};a\rb\r\n`)),
    'an extension with a NUL': refused(sized(`${SIZE};a\0\r\n`)),
    'a size that ends in LF alone': refused(sized(`${SIZE}\n`)),
    'data that ends in LF alone': refused(chunked(`${SIZE}\r\n${BODY}\n0\r\n\r\n`)),
    'an end of LF alone': refused(ending('0\n\n')),
    'a size with a space after it': refused(sized(`${SIZE} \r\n`)),
    'a size with a space before it': refused(sized(` ${SIZE}\r\n`)),
    'a size that begins with 0x': refused(sized(`0x${SIZE}\r\n`)),
    'no size': refused(sized('\r\n')),
  },
  trailers: {
    'that say who it is': taken(
      ending(
        '0\r\nAuthorization: Bearer a,b\r\nContent-Type: text/plain\r\n' +
          'Content-Encoding: gzip\r\nExpect: x\r\nHost: x\r\n\r\n',
      ),
    ),
    'that say who it is, without a token before': answered(
      posting([CHUNKED], { token: undefined }) +
        CHUNKS.replace('0\r\n\r\n', `0\r\n${/Authorization: .*\r\n/.exec(GOOD)?.[0]}\r\n`),
      'tokenMissing',
    ),
    'with a Content-Length': refused(ending('0\r\nContent-Length: 5\r\n\r\n')),
    'with a Transfer-Encoding': refused(ending('0\r\nTransfer-Encoding: chunked\r\n\r\n')),
    'without a colon': refused(ending('0\r\nnonsense\r\n\r\n')),
    folded: refused(ending('0\r\nA: b\r\n c\r\n\r\n')),
  },
  'what is not HTTP': {
    garbage: refused('GARBAGE\r\n\r\n'),
    'a TLS hello': refused('\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03'),
    'an HTTP/2 preface': refused('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
    'no version': refused('GET /plants\r\nHost: a\r\n\r\n'),
    'a space in the target': refused(head('GET', '/pl ants')),
    'a control character in the target': refused(head('GET', '/plants\x01')),
    'a header without colon': refused(get('Nonsense')),
    'a space before the colon': refused('GET /plants HTTP/1.1\r\nHost : a\r\n\r\n'),
    'a NUL in a header': refused(get('X: a\0b')),
    'a folded header': refused(get('X: a\r\n b')),
    'a bare CR': refused(get('X: a\rb')),
  },
  'lines and names': {
    'LF alone': refused('GET /plants HTTP/1.1\nHost: a\n\n'),
    'LF alone after one header': refused(GOOD.replace('plants.test\r\n', 'plants.test\n')),
    'LF alone at the end': refused(`${GOOD.slice(0, -2)}\n`),
    'CR alone': refused(GOOD.replaceAll('\r\n', '\r')),
    'a first header that is folded': refused('GET /plants HTTP/1.1\r\n Host: a\r\n\r\n'),
    'a space before the method': refused(` ${GOOD}`),
    'a tab after the method': refused(GOOD.replace('GET ', 'GET\t')),
    'a space after the version': refused(GOOD.replace('HTTP/1.1', 'HTTP/1.1 ')),
    'a version in small letters': refused(GOOD.replace('HTTP/1.1', 'http/1.1')),
    'a name of every character allowed': answered(get("!#$%&'*+-.^_`|~09AZaz: x"), 200),
    'a name with @': refused(get('a@b: x')),
    'a name outside ASCII': refused(get('\xe9: x')),
    'an empty name': refused(get(': x')),
    'names of Object.prototype': answered(
      get('__proto__: x', 'constructor: x', 'toString: x', 'hasOwnProperty: x'),
      200,
    ),
    'a value outside ASCII': answered(get('X: \xff\x80'), 200),
    'a target outside ASCII': refused(head('GET', '/plants?\xe9')),
    '99 headers whose names look like array indices': answered(
      get(...Array.from({ length: 97 }, (_, at) => `${4_000_000_000 + at * 65_536}:`)),
      200,
    ),
    'an authority for a target': refused(head('GET', 'plants.test:80')),
    'an absolute target without a host': answered(head('GET', 'http:///plants'), 'pathUnknown'),
    'an absolute target with user info': answered(
      head('GET', 'http://user:pass@plants.test/plants'),
      'pathUnknown',
    ),
    // Node's parser keeps only the version's numbers. As HTTP/1.0 it is harmless.
    RTSP: last(GOOD.replace('HTTP/1.1', 'RTSP/1.0')),
    ICE: refused(GOOD.replace('HTTP/1.1', 'ICE/1.0')),
  },
  'bodies where none is expected': {
    'a GET in the body of a GET': answered(hiding('GET'), 200),
    'a GET in the chunks of a GET': answered(get(CHUNKED) + chunks(GOOD), 200),
    'a GET in the body of an OPTIONS': answered(hiding('OPTIONS'), 204),
    'a GET in the body of a DELETE': answered(hiding('DELETE'), 'methodNotAllowed'),
    'a GET in the body of a TRACE': answered(hiding('TRACE'), 'methodUnknown'),
    'a GET in a refused body': answered(
      posting([`Content-Length: ${GOOD.length}`], { token: undefined }) + GOOD,
      'tokenMissing',
    ),
    'a method of another header': answered(
      post('', 'X-HTTP-Method-Override: GET', 'Content-Length: 0'),
      'bodyNotJson',
    ),
  },
  connection: {
    'close among others': last(get('Connection: keep-alive, close')),
    '256 characters': answered(get(`Connection: ${'x'.repeat(255)}`), 200),
    'more characters, which are not read': last(get(`Connection: ${'x'.repeat(256)}`)),
    'close in a second line': last(get('Connection: keep-alive', 'Connection: close')),
    'close and an upgrade': last(get('Connection: close, upgrade', 'Upgrade: h2c')),
    'an upgrade to HTTP/2': last(
      get('Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABkAARA'),
    ),
    'an upgrade of a POST': lastCreated(post(BODY, LENGTH, ...WEBSOCKET)),
    'an Upgrade that Connection does not name': last(get('Upgrade: h2c')),
    'an upgrade to nothing': answered(get('Connection: upgrade'), 200),
    'Proxy-Connection': last(get('Proxy-Connection: close')),
    'a Keep-Alive that asks for none': answered(
      get('Connection: keep-alive', 'Keep-Alive: timeout=0, max=0'),
      200,
    ),
    'the names of fields that are needed': answered(get('Connection: Host, Authorization'), 200),
    'an expectation twice in a line': last(
      get('Expect: 100-continue, 100-continue'),
      'expectationFailed',
    ),
    'an expectation with a parameter': last(
      post('{}', 'Expect: 100-continue;a=b', 'Content-Length: 2'),
      'expectationFailed',
    ),
    'an empty expectation': answered(get('Expect:'), 200),
    'an empty list of expectations': answered(get('Expect: , \t,'), 200),
    'a long empty list of expectations, which is not read': answered(
      get(`Expect: ${','.repeat(257)}`),
      'expectationFailed',
    ),
    'an empty expectation of a POST': taken(post(BODY, 'Expect:', LENGTH)),
    'an empty expectation beside one': taken(
      post(BODY, 'Expect: ,', 'Expect: 100-continue', LENGTH),
    ),
    'an empty expectation beside another': last(
      post('', 'Expect:', 'Expect: a 100-continue', 'Content-Length: 2'),
      'expectationFailed',
    ),
  },
}

test('framing: each shape is read as one request', async (t) => {
  const { port } = await startService(t)
  let owners = 0
  const all = Object.entries(SHAPES).flatMap(([kind, shapes]) =>
    Object.entries(shapes).map(([name, shape]) => ({ title: `${kind}: ${name}`, ...shape })),
  )
  for (const { title, bytes, answers, created = false } of all)
    await t.test(title, async () => {
      // An owner for each shape, whose token is as long as that of alice.
      const bearer = token(`o${String(owners++).padStart(4, '0')}`)
      const wire = await Wire.to(port)
      wire.write(bytes.replaceAll(/Bearer ey[^\r]+/g, `Bearer ${bearer}`) + NEXT).halfClose()
      const found = await wire.allAnswers()
      assert.deepEqual(found.map(verdict), answers)
      if (answers.length === 1)
        assert.deepEqual(headerLines(found[0] ?? assert.fail(), 'connection'), ['close'])
      assert.equal(wire.error, undefined)
      const kept = (await call(port, { token: bearer })).text
      assert.equal(kept, created ? '[{"name":"smuggled"}]' : '[]')
    })
})
