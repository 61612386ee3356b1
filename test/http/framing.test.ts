import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Condition } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

/*
 * Where a request ends. If a proxy and this service disagree on it, an attacker can make a part of
 * one client's request look like another client's (RFC 9112 §11.2). Each shape is followed by a
 * second request: it must be answered as such, or not at all and the connection closes.
 */

const JSON_TYPE = 'Content-Type: application/json'
const CHUNKED = 'Transfer-Encoding: chunked'
const BODY = '{"id":1,"name":"smuggled"}'
const SIZE = BODY.length.toString(16)
const CHUNKS = `${SIZE}\r\n${BODY}\r\n0\r\n\r\n`
const NEXT = head('GET', '/trees')
const GOOD = head('GET', '/plants')

interface Shape {
  readonly bytes: string
  /** The verdicts, in order. After a single one the connection must close. */
  readonly answers: readonly (Condition | number)[]
  /** True if the plant in the body is created. */
  readonly created?: boolean
}

function post(lines: readonly string[], body: string, version = '1.1'): string {
  return head('POST', '/plants', { version, lines: [JSON_TYPE, ...lines] }) + body
}

const refused = (bytes: string): Shape => ({ bytes, answers: ['malformedRequest'] })
const taken = (bytes: string): Shape => ({ bytes, answers: [200, 'pathUnknown'], created: true })
const answered = (bytes: string, ...answers: readonly (Condition | number)[]): Shape => ({
  bytes,
  answers: [...answers, 'pathUnknown'],
})
const last = (bytes: string, answer: Condition | number = 200): Shape => ({
  bytes,
  answers: [answer],
})

const SHAPES: Readonly<Record<string, Readonly<Record<string, Shape>>>> = {
  'Transfer-Encoding': {
    chunked: taken(post([CHUNKED], CHUNKS)),
    'in capitals': taken(post(['TRANSFER-ENCODING: CHUNKED'], CHUNKS)),
    'after a tab': taken(post(['Transfer-Encoding:\tchunked'], CHUNKS)),
    'identity, then chunked': refused(post(['Transfer-Encoding: identity', CHUNKED], CHUNKS)),
    'gzip, then chunked': refused(post(['Transfer-Encoding: gzip', CHUNKED], CHUNKS)),
    'empty, then chunked': refused(post(['Transfer-Encoding:', CHUNKED], CHUNKS)),
    'chunked, then identity': refused(post([CHUNKED, 'Transfer-Encoding: identity'], CHUNKS)),
    'chunked twice': refused(post([CHUNKED, CHUNKED], CHUNKS)),
    'chunked twice in a line': refused(post(['Transfer-Encoding: chunked, chunked'], CHUNKS)),
    empty: refused(post(['Transfer-Encoding:'], '')),
    'empty, with a Content-Length': refused(
      post(['Transfer-Encoding:', `Content-Length: ${BODY.length}`], BODY),
    ),
    'empty after a Content-Length': refused(
      post([`Content-Length: ${BODY.length}`, 'Transfer-Encoding:'], BODY),
    ),
    'empty, on a GET': refused(
      head('GET', '/plants', { lines: ['Transfer-Encoding:', 'Content-Length: 5'] }) + 'abcde',
    ),
    'with an empty element before': answered(
      post(['Transfer-Encoding: , chunked'], CHUNKS),
      'contentEncodingUnsupported',
    ),
    'identity before it in a line': answered(
      post(['Transfer-Encoding: identity, chunked'], CHUNKS),
      'contentEncodingUnsupported',
    ),
    'with an empty element at the end': refused(post(['Transfer-Encoding: chunked,'], CHUNKS)),
    'with a parameter': refused(post(['Transfer-Encoding: chunked;a=b'], CHUNKS)),
    quoted: refused(post(['Transfer-Encoding: "chunked"'], CHUNKS)),
    'almost chunked': refused(post(['Transfer-Encoding: xchunked'], CHUNKS)),
    'after a vertical tab': refused(post(['Transfer-Encoding: \x0bchunked'], CHUNKS)),
    'a space before its colon': refused(post(['Transfer-Encoding : chunked'], CHUNKS)),
    folded: refused(post(['Transfer-Encoding:\r\n chunked'], CHUNKS)),
    'in HTTP/1.0': refused(post([CHUNKED], CHUNKS, '1.0')),
    'in HTTP/1.0 that is kept alive': refused(
      post([CHUNKED, 'Connection: keep-alive'], CHUNKS, '1.0'),
    ),
    'and an upgrade': {
      ...last(post([CHUNKED, 'Connection: upgrade', 'Upgrade: websocket'], CHUNKS)),
      created: true,
    },
  },
  'Content-Length': {
    'with leading zeros': taken(post([`Content-Length: 0000${BODY.length}`], BODY)),
    empty: refused(post(['Content-Length:'], '')),
    'with a space inside': refused(post(['Content-Length: 2 6'], BODY)),
    'with an underscore inside': refused(post(['Content-Length: 2_6'], BODY)),
    'with a fraction': refused(post(['Content-Length: 26.0'], BODY)),
    'with an exponent': refused(post(['Content-Length: 26e0'], BODY)),
    'after a vertical tab': refused(post(['Content-Length: \x0b26'], BODY)),
    'past 2^64': refused(post([`Content-Length: ${2n ** 64n + BigInt(BODY.length)}`], BODY)),
    folded: refused(post(['Content-Length:\r\n 26'], BODY)),
    'written with underscores in its name': taken(
      post(
        ['Content_Length: 5', 'Transfer_Encoding: chunked', `Content-Length: ${BODY.length}`],
        BODY,
      ),
    ),
    'named in Connection': taken(
      post(['Connection: Content-Length', `Content-Length: ${BODY.length}`], BODY),
    ),
  },
  chunks: {
    'sizes with leading zeros': taken(
      post([CHUNKED], `${'0'.repeat(40)}${SIZE}\r\n${BODY}\r\n000\r\n\r\n`),
    ),
    'in capitals': taken(post([CHUNKED], `${SIZE.toUpperCase()}\r\n${BODY}\r\n0\r\n\r\n`)),
    'an extension of 16,000 bytes': taken(
      post([CHUNKED], `${SIZE};${'x'.repeat(16_000)}\r\n${BODY}\r\n0\r\n\r\n`),
    ),
    'an extension of 64 KiB': refused(
      post([CHUNKED], `${SIZE};${'x'.repeat(65_536)}\r\n${BODY}\r\n0\r\n\r\n`),
    ),
    'an extension that ends in LF alone': refused(
      post([CHUNKED], `${SIZE};a\n${BODY}\r\n0\r\n\r\n`),
    ),
    'an extension with a bare CR': refused(post([CHUNKED], `${SIZE};a\rb\r\n${BODY}\r\n0\r\n\r\n`)),
    'an extension with a NUL': refused(post([CHUNKED], `${SIZE};a\0\r\n${BODY}\r\n0\r\n\r\n`)),
    'a size that ends in LF alone': refused(post([CHUNKED], `${SIZE}\n${BODY}\r\n0\r\n\r\n`)),
    'data that ends in LF alone': refused(post([CHUNKED], `${SIZE}\r\n${BODY}\n0\r\n\r\n`)),
    'an end of LF alone': refused(post([CHUNKED], `${SIZE}\r\n${BODY}\r\n0\n\n`)),
    'a size with a space after it': refused(post([CHUNKED], `${SIZE} \r\n${BODY}\r\n0\r\n\r\n`)),
    'a size with a space before it': refused(post([CHUNKED], ` ${SIZE}\r\n${BODY}\r\n0\r\n\r\n`)),
    'a size that begins with 0x': refused(post([CHUNKED], `0x${SIZE}\r\n${BODY}\r\n0\r\n\r\n`)),
    'no size': refused(post([CHUNKED], `\r\n${BODY}\r\n0\r\n\r\n`)),
  },
  trailers: {
    'that say who it is': taken(
      post(
        [CHUNKED],
        `${SIZE}\r\n${BODY}\r\n0\r\nAuthorization: Bearer a,b\r\nContent-Type: text/plain\r\n` +
          'Content-Encoding: gzip\r\nExpect: x\r\nHost: x\r\n\r\n',
      ),
    ),
    'that say who it is, without a token before': answered(
      head('POST', '/plants', { token: undefined, lines: [JSON_TYPE, CHUNKED] }) +
        CHUNKS.replace('0\r\n\r\n', `0\r\n${/Authorization: .*\r\n/.exec(GOOD)?.[0]}\r\n`),
      'tokenMissing',
    ),
    'with a Content-Length': refused(
      post([CHUNKED], `${SIZE}\r\n${BODY}\r\n0\r\nContent-Length: 5\r\n\r\n`),
    ),
    'with a Transfer-Encoding': refused(
      post([CHUNKED], `${SIZE}\r\n${BODY}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n`),
    ),
    'without a colon': refused(post([CHUNKED], `${SIZE}\r\n${BODY}\r\n0\r\nnonsense\r\n\r\n`)),
    folded: refused(post([CHUNKED], `${SIZE}\r\n${BODY}\r\n0\r\nA: b\r\n c\r\n\r\n`)),
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
    'a name of every character that is allowed': answered(
      head('GET', '/plants', { lines: ["!#$%&'*+-.^_`|~09AZaz: x"] }),
      200,
    ),
    'a name with @': refused(head('GET', '/plants', { lines: ['a@b: x'] })),
    'a name outside ASCII': refused(head('GET', '/plants', { lines: ['\xe9: x'] })),
    'an empty name': refused(head('GET', '/plants', { lines: [': x'] })),
    'names of Object.prototype': answered(
      head('GET', '/plants', {
        lines: ['__proto__: x', 'constructor: x', 'toString: x', 'hasOwnProperty: x'],
      }),
      200,
    ),
    'a value outside ASCII': answered(head('GET', '/plants', { lines: ['X: \xff\x80'] }), 200),
    'a target outside ASCII': refused(head('GET', '/plants?\xe9')),
    '99 headers whose names look like array indices': answered(
      head('GET', '/plants', {
        lines: Array.from({ length: 97 }, (_, at) => `${4_000_000_000 + at * 65_536}:`),
      }),
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
    'a GET in the body of a GET': answered(
      head('GET', '/plants', { lines: [`Content-Length: ${GOOD.length}`] }) + GOOD,
      200,
    ),
    'a GET in the chunks of a GET': answered(
      head('GET', '/plants', { lines: [CHUNKED] }) +
        `${GOOD.length.toString(16)}\r\n${GOOD}\r\n0\r\n\r\n`,
      200,
    ),
    'a GET in the body of an OPTIONS': answered(
      head('OPTIONS', '/plants', { lines: [`Content-Length: ${GOOD.length}`] }) + GOOD,
      204,
    ),
    'a GET in the body of a DELETE': answered(
      head('DELETE', '/plants', { lines: [`Content-Length: ${GOOD.length}`] }) + GOOD,
      'methodNotAllowed',
    ),
    'a GET in the body of a TRACE': answered(
      head('TRACE', '/plants', { lines: [`Content-Length: ${GOOD.length}`] }) + GOOD,
      'methodUnknown',
    ),
    'a GET in a refused body': answered(
      head('POST', '/plants', {
        token: undefined,
        lines: [JSON_TYPE, `Content-Length: ${GOOD.length}`],
      }) + GOOD,
      'tokenMissing',
    ),
    'a method of another header': answered(
      head('POST', '/plants', {
        lines: ['X-HTTP-Method-Override: GET', JSON_TYPE, 'Content-Length: 0'],
      }),
      'bodyNotJson',
    ),
  },
  connection: {
    'close among others': last(
      head('GET', '/plants', { lines: ['Connection: keep-alive, close'] }),
    ),
    'close in a second line': last(
      head('GET', '/plants', { lines: ['Connection: keep-alive', 'Connection: close'] }),
    ),
    'close and an upgrade': last(
      head('GET', '/plants', { lines: ['Connection: close, upgrade', 'Upgrade: h2c'] }),
    ),
    'an upgrade of a POST': {
      ...last(
        post([`Content-Length: ${BODY.length}`, 'Connection: upgrade', 'Upgrade: websocket'], BODY),
      ),
      created: true,
    },
    'an Upgrade that Connection does not name': last(
      head('GET', '/plants', { lines: ['Upgrade: h2c'] }),
    ),
    'an upgrade to nothing': answered(
      head('GET', '/plants', { lines: ['Connection: upgrade'] }),
      200,
    ),
    'Proxy-Connection': last(head('GET', '/plants', { lines: ['Proxy-Connection: close'] })),
    'a Keep-Alive that asks for none': answered(
      head('GET', '/plants', { lines: ['Connection: keep-alive', 'Keep-Alive: timeout=0, max=0'] }),
      200,
    ),
    'the names of fields that are needed': answered(
      head('GET', '/plants', { lines: ['Connection: Host, Authorization'] }),
      200,
    ),
    'an expectation twice in a line': last(
      head('GET', '/plants', { lines: ['Expect: 100-continue, 100-continue'] }),
      'expectationFailed',
    ),
    'an expectation with a parameter': last(
      post(['Expect: 100-continue;a=b', 'Content-Length: 2'], '{}'),
      'expectationFailed',
    ),
    'an empty expectation': answered(
      head('GET', '/plants', { lines: ['Expect:'] }),
      'expectationFailed',
    ),
  },
}

test('framing', async (t) => {
  const { port } = await startService(t)
  let owners = 0
  for (const [kind, shapes] of Object.entries(SHAPES)) {
    await t.test(
      `${kind}: each of ${Object.keys(shapes).length} shapes is read as one request`,
      async () => {
        for (const [name, { bytes, answers, created = false }] of Object.entries(shapes)) {
          // An owner for each shape, whose token is as long as that of alice.
          const bearer = token(`o${String(owners++).padStart(4, '0')}`)
          const wire = await Wire.to(port)
          const found = await wire
            .write(bytes.replaceAll(/Bearer ey[^\r]+/g, `Bearer ${bearer}`) + NEXT)
            .halfClose()
            .allAnswers()
          assert.deepEqual(found.map(verdict), answers, name)
          if (answers.length === 1)
            assert.deepEqual(headerLines(found[0] ?? assert.fail(), 'connection'), ['close'], name)
          assert.equal(wire.error, undefined, name)
          wire.destroy()
          assert.equal(
            (await call(port, { token: bearer })).text,
            created ? '[{"name":"smuggled"}]' : '[]',
            name,
          )
        }
      },
    )
  }
})
