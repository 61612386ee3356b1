import { METHODS } from 'node:http'

/*
 * The oracle's own, strict reading of a connection's bytes (RFC 9112). All text is latin1: a
 * character is a byte.
 */

export interface Request {
  readonly kind: 'request'
  readonly method: string
  readonly target: string
  readonly version: string
  /** Names in lower case. */
  readonly fields: readonly (readonly [name: string, value: string])[]
  readonly body: Buffer
  readonly framing: 'none' | 'length' | 'chunked'
  /** Bytes, as Content-Length says. */
  readonly declared: number
  /** Errors for an unfinished body; empty if it is whole. */
  readonly broken: readonly number[]
  /** Errors of the headers that some readers see and others do not. */
  readonly doubts: readonly number[]
}

export type Reading =
  | Request
  /** Neither this nor anything after it is a request. */
  | { readonly kind: 'malformed'; readonly errors: readonly number[]; readonly mayBeHead: boolean }
  /** From here on, readers differ for good reasons. */
  | { readonly kind: 'unclear'; readonly rest: string }

const MALFORMED = 40001
const HEADERS_TOO_LARGE = 43101
const TOO_SLOW = 40801
/** Node does not count every byte of headers: between the two, both are right. */
const SURELY_SMALL_BYTES = 15_000
const SURELY_LARGE_BYTES = 18_000
/** As many headers are refused, however short they are. */
const HEADERS_REFUSED = 100
const HEAD_MAX_BYTES = 16 * 1024
const KNOWN: ReadonlySet<string> = new Set(METHODS)

const NAME = /[!#$%&'*+\-.^_`|~0-9A-Za-z]+:/y
const CONTROL = /[\x00-\x08\x0a-\x1f\x7f]/
const REQUEST_LINE = /([A-Z-]+) ([\x21-\x7e\x80-\xff]+) HTTP\/(\d\.\d)\r\n/y
/** What some readers accept as a request line: with other spaces. */
const LOOSE_LINE = /[A-Z-]+[ \t\f]+[^\r\n]*?[ \t\f]*HTTP\/\d\.\d[ \t]*\r\n/y
const ABSOLUTE =
  /^https?:\/\/(?:[A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(?::\d+)?(?:[/?][\x21\x23-\x7e]*)?$/i
const TOKEN = "[!#$%&'*+\\-.^_`|~0-9A-Za-z]+"
const QUOTED = '"[\\x20\\x21\\x23-\\x5b\\x5d-\\x7e]*"'
const EXTENSIONS = new RegExp(`^(?:;${TOKEN}(?:=(?:${TOKEN}|${QUOTED}))?)*$`)

/**
 * Reads up to the first thing that is no whole good request. The text ends with the connection, or,
 * if it `stalls`, with a client that is too slow for its headers.
 */
export function readRequests(text: string, stalls = false): readonly Reading[] {
  const readings = readAll(text)
  return stalls
    ? readings.map((reading) =>
        reading.kind === 'malformed' ? { ...reading, errors: [TOO_SLOW] } : reading,
      )
    : readings
}

function readAll(text: string): readonly Reading[] {
  const readings: Reading[] = []
  let at = 0
  for (;;) {
    while (text[at] === '\r' || text[at] === '\n') at++
    if (at >= text.length) return readings
    const found = readRequest(text, at)
    readings.push(found.reading)
    if (found.end === undefined) return readings
    at = found.end
  }
}

interface Found {
  readonly reading: Reading
  /** Undefined if nothing after it is read. */
  readonly end: number | undefined
}

function refuse(text: string, start: number): Found {
  return {
    reading: {
      kind: 'malformed',
      errors:
        text.length - start > SURELY_SMALL_BYTES ? [MALFORMED, HEADERS_TOO_LARGE] : [MALFORMED],
      mayBeHead: text.startsWith('HEAD ', start),
    },
    end: undefined,
  }
}

function unclear(text: string, start: number): Found {
  return { reading: { kind: 'unclear', rest: text.slice(start) }, end: undefined }
}

function readRequest(text: string, start: number): Found {
  REQUEST_LINE.lastIndex = start
  const [line, method = '', target = '', version = ''] = REQUEST_LINE.exec(text) ?? []
  if (line === undefined) {
    LOOSE_LINE.lastIndex = start
    return LOOSE_LINE.test(text) ? unclear(text, start) : refuse(text, start)
  }
  if (!KNOWN.has(method) || !/^[/*A-Za-z]/.test(target))
    return method === 'CONNECT' ? unclear(text, start) : refuse(text, start)
  const doubts: number[] = []
  if (
    method === 'CONNECT' ||
    (!target.startsWith('/') && target !== '*' && !ABSOLUTE.test(target)) ||
    /[\x80-\xff]|#.*#/.test(target)
  )
    doubts.push(MALFORMED)
  const section = readFields(text, start + line.length)
  if (section === undefined) return refuse(text, start)
  if (section === 'unclear') return unclear(text, start)
  const { fields, end } = section
  const size =
    target.length + fields.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
  const head = { kind: 'request', method, target, version, fields, doubts } as const
  if (size > SURELY_LARGE_BYTES || fields.length >= HEADERS_REFUSED)
    return tooLarge(text, start, end, head)
  if (size > SURELY_SMALL_BYTES) doubts.push(HEADERS_TOO_LARGE)
  const found = readBody(text, start, end, head)
  if (!/^1\.[01]$/.test(version)) return otherVersion(found, head)
  // Nothing after CONNECT has frames. After an upgrade Node's parser ignores bad chunks: such a
  // request ends as one that takes too long.
  const mayBeSilent =
    method === 'CONNECT' ||
    (valuesOf(head, 'upgrade').length > 0 && valuesOf(head, 'transfer-encoding').length > 0)
  const { reading } = found
  const isBroken = reading.kind === 'request' && reading.broken.length > 0
  return mayBeSilent && (isBroken || reading.kind === 'malformed') ? unclear(text, start) : found
}

function tooLarge(text: string, start: number, end: number, head: Head): Found {
  // Another fault may be found first.
  const { reading } = readBody(text, start, end, head)
  const isWrong =
    head.doubts.length > 0 ||
    !/^1\.[01]$/.test(head.version) ||
    reading.kind !== 'request' ||
    reading.broken.length > 0
  const errors = isWrong ? [HEADERS_TOO_LARGE, MALFORMED] : [HEADERS_TOO_LARGE]
  const mayBeHead = head.method === 'HEAD'
  return { reading: { kind: 'malformed', errors, mayBeHead }, end: undefined }
}

/** It is refused for its version, or for a fault in its body if that is found first. */
function otherVersion({ reading }: Found, head: Head): Found {
  const broken = reading.kind === 'request' ? reading.broken : [MALFORMED]
  const noBody = { body: Buffer.alloc(0), framing: 'none', declared: 0 } as const
  return { reading: { ...head, ...noBody, broken }, end: undefined }
}

type Head = Pick<Request, 'kind' | 'method' | 'target' | 'version' | 'fields' | 'doubts'>

function readBody(text: string, start: number, at: number, head: Head): Found {
  const lengths = valuesOf(head, 'content-length')
  const codings = valuesOf(head, 'transfer-encoding')
  const [length] = lengths
  if (codings.length > 0) {
    // RFC 9112 §6.1: both headers together are an attack, and HTTP/1.0 has no chunked coding. After
    // an upgrade no reader looks for a body, and with Expect one may refuse the headers alone.
    if (
      length === undefined &&
      (valuesOf(head, 'upgrade').length > 0 || valuesOf(head, 'expect').length > 0) &&
      !/^chunked$/i.test(codings.join())
    )
      return unclear(text, start)
    if (length !== undefined || !/(?:^|,)[ \t]*chunked$/i.test(codings.at(-1) ?? ''))
      return refuse(text, start)
    if (codings.length > 1 || head.version === '1.0') return refuse(text, start)
    if (/chunked.*chunked/i.test(codings.join())) return unclear(text, start)
    return readChunks(text, start, at, head)
  }
  if (length === undefined)
    return {
      reading: { ...head, body: Buffer.alloc(0), framing: 'none', declared: 0, broken: [] },
      end: at,
    }
  if (lengths.length > 1 || !/^\d+$/.test(length) || BigInt(length) >= 2n ** 64n)
    return refuse(text, start)
  const declared = Number(length)
  const whole = text.length - at >= declared
  const body = Buffer.from(text.slice(at, at + declared), 'latin1')
  return {
    reading: { ...head, body, framing: 'length', declared, broken: whole ? [] : [MALFORMED] },
    end: whole ? at + declared : undefined,
  }
}

function readChunks(text: string, start: number, from: number, head: Head): Found {
  const pieces: string[] = []
  const done = (broken: readonly number[], end?: number): Found => ({
    reading: {
      ...head,
      body: Buffer.from(pieces.join(''), 'latin1'),
      framing: 'chunked',
      declared: 0,
      broken,
    },
    end,
  })
  for (let at = from; ; ) {
    const lineEnd = text.indexOf('\n', at)
    const line = text.slice(at, lineEnd < 0 ? undefined : lineEnd + 1)
    const [, digits = '', space = '', extensions = ''] =
      /^([0-9A-Fa-f]+)([ \t]*)(;[^\r\n]*)?\r\n$/.exec(line) ?? []
    if (digits === '') return done([MALFORMED])
    if (digits.replace(/^0+/, '').length > 15) return done([MALFORMED])
    if (space !== '' || !EXTENSIONS.test(extensions)) return unclear(text, start)
    if (extensions.length > HEAD_MAX_BYTES) return done([MALFORMED])
    const size = Number.parseInt(digits, 16)
    at += line.length
    if (size === 0) return readTrailers(text, start, at, done)
    pieces.push(text.slice(at, at + size))
    at += size
    if (!text.startsWith('\r\n', at)) return done([MALFORMED])
    at += 2
  }
}

function readTrailers(
  text: string,
  start: number,
  at: number,
  done: (broken: readonly number[], end?: number) => Found,
): Found {
  const trailers = readFields(text, at)
  if (trailers === 'unclear') return unclear(text, start)
  if (trailers === undefined)
    return done(
      text.length - at > SURELY_SMALL_BYTES ? [MALFORMED, HEADERS_TOO_LARGE] : [MALFORMED],
    )
  const size = trailers.fields.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
  if (size > SURELY_LARGE_BYTES) return done([HEADERS_TOO_LARGE])
  // RFC 9110 §6.5.1: a header that frames messages may not be a trailer. Between the sizes both
  // answers are right.
  if (
    size > SURELY_SMALL_BYTES ||
    trailers.fields.some(([name]) =>
      /^(?:content-length|transfer-encoding|connection|proxy-connection|upgrade)$/.test(name),
    )
  )
    return unclear(text, start)
  return done([], trailers.end)
}

/** Header lines up to the empty one. Undefined if they are malformed. */
function readFields(
  text: string,
  from: number,
):
  | { readonly fields: readonly (readonly [string, string])[]; readonly end: number }
  | 'unclear'
  | undefined {
  const fields: (readonly [string, string])[] = []
  for (let at = from; ; ) {
    if (text.startsWith('\r\n', at)) return { fields, end: at + 2 }
    NAME.lastIndex = at
    const [name] = NAME.exec(text) ?? []
    if (name === undefined) return undefined
    const lineFeed = text.indexOf('\n', at)
    if (lineFeed < 0) return undefined
    const line = text.slice(at + name.length, lineFeed)
    // RFC 9112 §2.2: some readers take LF alone for the end of a line, and see other requests.
    if (!line.endsWith('\r')) return undefined
    if (CONTROL.test(line.slice(0, -1))) return undefined
    // llhttp accepts a space after these values and no tab, though both are OWS.
    if (/^(?:content-length|transfer-encoding):$/i.test(name) && /\t[ \t]*\r$/.test(line))
      return 'unclear'
    fields.push([name.slice(0, -1).toLowerCase(), trimSpace(line.slice(0, -1))])
    at = lineFeed + 1
  }
}

/**
 * Trims HTTP's white space only: String.trim knows more. A pattern would take quadratic time for
 * many spaces in the middle.
 */
export function trimSpace(text: string): string {
  let [start, end] = [0, text.length]
  while (text[start] === ' ' || text[start] === '\t') start++
  while (end > start && (text[end - 1] === ' ' || text[end - 1] === '\t')) end--
  return text.slice(start, end)
}

export function valuesOf({ fields }: Pick<Request, 'fields'>, name: string): readonly string[] {
  return fields.filter(([other]) => other === name).map(([, value]) => value)
}

/**
 * Whether the answer to this has no body because of HEAD; undefined if that is unknown, because a
 * parser that gave up may have sent it.
 */
export function isHead(reading: Reading | undefined): boolean | undefined {
  if (reading?.kind === 'malformed' && !reading.mayBeHead) return false
  if (reading?.kind !== 'request') return undefined
  const isSure =
    reading.method !== 'HEAD' ||
    (reading.broken.length === 0 &&
      reading.doubts.length === 0 &&
      /^1\.[01]$/.test(reading.version))
  return isSure ? reading.method === 'HEAD' : undefined
}
