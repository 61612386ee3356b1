import assert from 'node:assert/strict'
import { test } from 'node:test'
import { tableOf } from '../support/documents.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { CHUNKED, converse, head, posting, Wire, type WireAnswer } from '../support/wire.ts'

/* The cause of a malformed request in the log. */

/** What a client writes; the text occurs in it. */
type Kind = (text: string) => string

const headers = (...lines: readonly string[]): string => head('GET', '/plants', { lines })

/** Each has a cause of its own in Node's words. */
const KINDS: Readonly<Record<string, Kind>> = {
  'no method': (text) => `${text} / HTTP/1.1\r\n\r\n`,
  'no target': (text) => `GET ${text} HTTP/1.1\r\n\r\n`,
  'a control in a target': (text) => `GET /${text}\x01 HTTP/1.1\r\n\r\n`,
  'no protocol': (text) => `GET / ${text}/1.1\r\n\r\n`,
  'an unknown version': (text) => `GET /${text} HTTP/9.7\r\n\r\n`,
  'LF alone after the request line': (text) => `GET /${text} HTTP/1.1\nHost: a\n\n`,
  'LF alone after a header': (text) => `GET / HTTP/1.1\r\nX: ${text}\nHost: a\r\n\r\n`,
  'a blank in the name of a header': (text) => headers(`X ${text}: a`),
  'a control in a value': (text) => headers(`X: ${text}\0`),
  'a folded value': (text) => headers('X: a', ` ${text}`),
  'two lengths': (text) => posting([`X: ${text}`, 'Content-Length: 1', 'Content-Length: 1']),
  'a length that is no number': (text) => posting([`Content-Length: x${text}`]),
  'a length and chunks': (text) => posting([`X: ${text}`, 'Content-Length: 1', CHUNKED]),
  'chunks and a length': (text) => posting([`X: ${text}`, CHUNKED, 'Content-Length: 1']),
  'no size of a chunk': (text) => `${posting([CHUNKED])}${text}\r\n`,
  'a long extension of a chunk': (text) => `${posting([CHUNKED])}1;${text.repeat(4000)}\r\n`,
  'an end inside a request': (text) => `GET /${text}`,
}

/** What is no HTTP/1 at all, with the cause in words of the service. */
const PROTOCOLS: Readonly<Record<string, Kind>> = {
  'PROXY protocol v1': (text) => `PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n${headers(`X: ${text}`)}`,
  'PROXY protocol v2': (text) => `\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c${text}${headers()}`,
  TLS: (text) => `\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03${text}`,
  'HTTP/2': (text) => `PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${text}`,
}

/** What the router finds itself. */
const UNCLEAR: Readonly<Record<string, Kind>> = {
  'a coding that is not chunked': (text) => posting([`Transfer-Encoding: ${text}`]),
  'the version 2.0': (text) => head('GET', `/${text}`, { version: '2.0' }),
  'chunks over HTTP/1.0': (text) => head('GET', `/${text}`, { version: '1.0', lines: [CHUNKED] }),
}

const TEXTS = ['qwvzk', 'JXQPM'] as const

interface Service {
  readonly port: number
  readonly logLines: readonly string[]
}

/** What the log has of a refused request. */
async function causeOf({ logLines }: Service, answer: WireAnswer | undefined): Promise<unknown> {
  if (!answer) return undefined
  assert.equal(verdict(answer), 'malformedRequest')
  const id = headerLines(answer, 'request-id')[0] ?? ''
  const find = () => logLines.find((line) => line.includes('"refused"') && line.includes(id))
  await until('it is logged', () => find() !== undefined)
  // The service's own line.
  return (JSON.parse(find() ?? '') as { readonly cause?: unknown }).cause
}

test('causes: each kind of malformed request has one, without a byte of the client', async (t) => {
  const service = await startService(t, { logLevel: 'debug' })
  const { port, logLines } = service
  const causeFor = async (bytes: string) => causeOf(service, (await converse(port, bytes))[0])
  const seen = new Map<unknown, string>()
  for (const [kind, write] of Object.entries({ ...KINDS, ...PROTOCOLS, ...UNCLEAR })) {
    const [cause, other] = [await causeFor(write(TEXTS[0])), await causeFor(write(TEXTS[1]))]
    assert.equal(cause, other, kind)
    if (kind in PROTOCOLS) assert.equal(cause, `it begins like ${kind}`)
    else if (kind in KINDS) assert.match(String(cause), /^Parse Error(?:: [\x20-\x7e]+)?$/)
    else assert.equal(cause, 'its version is unknown, or it is unclear where it ends')
    if (!(kind in UNCLEAR)) assert.equal(seen.get(cause), undefined, `${kind}: ${String(cause)}`)
    seen.set(cause, kind)
  }
  const named = tableOf('scripts/deploy/README.md', '`cause` of 40001').flatMap(([cell = '']) =>
    [...cell.matchAll(/`([^`]+)`/g)].map(([, cause]) => cause),
  )
  const known = [...seen.keys()].map((cause) => String(cause).replace('Parse Error: ', ''))
  assert.deepEqual(named.sort(), known.sort(), "the causes in the operators' document")
  for (const line of logLines)
    assert.ok(!TEXTS.some((text) => line.toLowerCase().includes(text.toLowerCase())), line)
})

test('causes: another protocol is named only if the connection begins with it', async (t) => {
  const service = await startService(t, { logLevel: 'debug' })
  const { port } = service
  const unknown = 'Parse Error: Invalid method encountered'
  const good = head('GET', '/plants')
  for (const write of Object.values(PROTOCOLS)) {
    const bytes = write('')
    const [, after] = await converse(port, good + bytes)
    assert.doesNotMatch(String(await causeOf(service, after)), /begins/)
    const wire = await Wire.to(port)
    await wire.write(good).answers(1)
    const [, later] = await wire.write(bytes).halfClose().answers(2)
    assert.doesNotMatch(String(await causeOf(service, later)), /begins/)
  }
  for (const near of ['PROXYTCP4\r\n\r\n', '\x16\x02\x01', 'PROPX / HTTP/1.1\r\n\r\n'])
    assert.equal(await causeOf(service, (await converse(port, near))[0]), unknown)
})

test('causes: a CONNECT, and headers that are too large, have one too', async (t) => {
  const service = await startService(t, { logLevel: 'debug' })
  const { port, logLines } = service
  for (const [bytes, cause] of [
    [head('CONNECT', 'a:1'), 'CONNECT'],
    [headers(`X: ${'x'.repeat(20_000)}`), 'Parse Error: Header overflow'],
  ] as const) {
    await converse(port, bytes)
    await until('it is logged', () => logLines.some((line) => line.includes(`"cause":"${cause}"`)))
  }
})
