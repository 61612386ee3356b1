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
  return readAll(text).map((reading) =>
    stalls && reading.kind === 'malformed' ? { ...reading, errors: [TOO_SLOW] } : reading,
  )
}

function readAll(text: string): readonly Reading[] {
  const readings: Reading[] = []
  for (let at: number | undefined = 0; at !== undefined; ) {
    while (text[at] === '\r' || text[at] === '\n') at++
    if (at >= text.length) break
    const start = at
    const { reading, end } = untilEnding(text, start, () => readRequest(text, start))
    readings.push(reading)
    at = end
  }
  return readings
}

interface Found {
  readonly reading: Reading
  /** Undefined if nothing after it is read. */
  readonly end: number | undefined
}

/** Thrown where neither this nor anything after it is a request. */
const REFUSE = new Error('malformed')
/** Thrown where readers differ. */
const UNCLEAR = new Error('unclear')

/** What was thrown is the reading of all that is left. */
function untilEnding(text: string, start: number, read: () => Found): Found {
  try {
    return read()
  } catch (error) {
    const rest = text.slice(start)
    if (error === UNCLEAR) return { reading: { kind: 'unclear', rest }, end: undefined }
    if (error !== REFUSE) throw error
    return malformed(malformedAfter(rest.length), rest.startsWith('HEAD '))
  }
}

function malformed(errors: readonly number[], mayBeHead: boolean): Found {
  return { reading: { kind: 'malformed', errors, mayBeHead }, end: undefined }
}

/** The errors for something malformed: after so many bytes another limit may be met first. */
function malformedAfter(bytes: number): readonly number[] {
  return bytes > SURELY_SMALL_BYTES ? [MALFORMED, HEADERS_TOO_LARGE] : [MALFORMED]
}

function readRequest(text: string, start: number): Found {
  REQUEST_LINE.lastIndex = LOOSE_LINE.lastIndex = start
  const [line, method = '', target = '', version = ''] = REQUEST_LINE.exec(text) ?? []
  if (line === undefined) throw LOOSE_LINE.test(text) ? UNCLEAR : REFUSE
  const isConnect = method === 'CONNECT'
  if (!KNOWN.has(method) || !/^[/*A-Za-z]/.test(target)) throw isConnect ? UNCLEAR : REFUSE
  const isUsual = target.startsWith('/') || target === '*' || ABSOLUTE.test(target)
  const doubts = isConnect || !isUsual || /[\x80-\xff]|#.*#/.test(target) ? [MALFORMED] : []
  const section = readFields(text, start + line.length)
  if (section === undefined) throw REFUSE
  const { fields, end } = section
  const size = target.length + sizeOf(fields)
  const head = { kind: 'request', method, target, version, fields, doubts } as const
  const found = untilEnding(text, start, () => readBody(text, end, head))
  const broken = found.reading.kind === 'request' ? found.reading.broken : [MALFORMED]
  const isHttp1 = /^1\.[01]$/.test(version)
  if (size > SURELY_LARGE_BYTES || fields.length >= HEADERS_REFUSED) {
    // Another fault may be found first.
    const isWrong = doubts.length > 0 || !isHttp1 || broken.length > 0
    const errors = isWrong ? [HEADERS_TOO_LARGE, MALFORMED] : [HEADERS_TOO_LARGE]
    return malformed(errors, method === 'HEAD')
  }
  if (size > SURELY_SMALL_BYTES) doubts.push(HEADERS_TOO_LARGE)
  // It is refused for its version, or for a fault in its body if that is found first.
  if (!isHttp1) return { reading: { ...head, ...NO_BODY, broken }, end: undefined }
  // Nothing after CONNECT has frames. After an upgrade Node's parser ignores bad chunks, and the
  // end of what a client sends: such a request ends as one that takes too long.
  const mayBeSilent = isConnect || has(head, 'upgrade')
  if (mayBeSilent && broken.length > 0) throw UNCLEAR
  return found
}

type Head = Pick<Request, 'kind' | 'method' | 'target' | 'version' | 'fields' | 'doubts'>

const NO_BODY = { body: Buffer.alloc(0), framing: 'none', declared: 0 } as const

function readBody(text: string, at: number, head: Head): Found {
  const lengths = valuesOf(head, 'content-length')
  const codings = valuesOf(head, 'transfer-encoding')
  const [length] = lengths
  if (codings.length > 0) {
    const all = codings.join()
    // RFC 9112 §6.1: both headers together are an attack, and HTTP/1.0 has no chunked coding. After
    // an upgrade no reader looks for a body, and with Expect one may refuse the headers alone.
    const mayBeUnread = has(head, 'upgrade') || has(head, 'expect')
    if (length === undefined && mayBeUnread && !/^chunked$/i.test(all)) throw UNCLEAR
    const isLast = /(?:^|,)[ \t]*chunked$/i.test(codings.at(-1) ?? '')
    if (length !== undefined || !isLast || codings.length > 1 || head.version === '1.0')
      throw REFUSE
    if (/chunked.*chunked/i.test(all)) throw UNCLEAR
    return readChunks(text, at, head)
  }
  if (length === undefined) return { reading: { ...head, ...NO_BODY, broken: [] }, end: at }
  if (lengths.length > 1 || !/^\d+$/.test(length) || BigInt(length) >= 2n ** 64n) throw REFUSE
  const declared = Number(length)
  const end = at + declared
  const isWhole = text.length >= end
  const body = Buffer.from(text.slice(at, end), 'latin1')
  const broken = isWhole ? [] : [MALFORMED]
  const reading = { ...head, body, framing: 'length', declared, broken } as const
  return { reading, end: isWhole ? end : undefined }
}

function readChunks(text: string, from: number, head: Head): Found {
  const pieces: string[] = []
  const done = (broken: readonly number[], end?: number): Found => {
    const body = Buffer.from(pieces.join(''), 'latin1')
    return { reading: { ...head, body, framing: 'chunked', declared: 0, broken }, end }
  }
  for (let at = from; ; ) {
    const lineEnd = text.indexOf('\n', at)
    const line = text.slice(at, lineEnd < 0 ? undefined : lineEnd + 1)
    const [, digits = '', space = '', extensions = ''] =
      /^([0-9A-Fa-f]+)([ \t]*)(;[^\r\n]*)?\r\n$/.exec(line) ?? []
    if (digits === '' || digits.replace(/^0+/, '').length > 15) return done([MALFORMED])
    if (space !== '' || !EXTENSIONS.test(extensions)) throw UNCLEAR
    if (extensions.length > HEAD_MAX_BYTES) return done([MALFORMED])
    const size = Number.parseInt(digits, 16)
    at += line.length
    if (size === 0) return readTrailers(text, at, done)
    pieces.push(text.slice(at, at + size))
    at += size
    if (!text.startsWith('\r\n', at)) return done([MALFORMED])
    at += 2
  }
}

const FRAMING = /^(?:content-length|transfer-encoding|connection|proxy-connection|upgrade)$/

function readTrailers(
  text: string,
  at: number,
  done: (broken: readonly number[], end?: number) => Found,
): Found {
  const trailers = readFields(text, at)
  if (trailers === undefined) return done(malformedAfter(text.length - at))
  const size = sizeOf(trailers.fields)
  if (size > SURELY_LARGE_BYTES) return done([HEADERS_TOO_LARGE])
  // RFC 9110 §6.5.1: a header that frames messages may not be a trailer. Between the sizes both
  // answers are right.
  if (size > SURELY_SMALL_BYTES || trailers.fields.some(([name]) => FRAMING.test(name)))
    throw UNCLEAR
  return done([], trailers.end)
}

type Fields = Request['fields']

/** Header lines up to the empty one. Undefined if they are malformed. */
function readFields(
  text: string,
  from: number,
): { readonly fields: Fields; readonly end: number } | undefined {
  const fields: (readonly [string, string])[] = []
  for (let at = from; ; ) {
    if (text.startsWith('\r\n', at)) return { fields, end: at + 2 }
    NAME.lastIndex = at
    const [name] = NAME.exec(text) ?? []
    const lineFeed = text.indexOf('\n', at)
    if (name === undefined || lineFeed < 0) return undefined
    const line = text.slice(at + name.length, lineFeed)
    // RFC 9112 §2.2: some readers take LF alone for the end of a line, and see other requests.
    if (!line.endsWith('\r') || CONTROL.test(line.slice(0, -1))) return undefined
    // llhttp accepts a space after these values and no tab, though both are OWS.
    if (/^(?:content-length|transfer-encoding):$/i.test(name) && /\t[ \t]*\r$/.test(line))
      throw UNCLEAR
    fields.push([name.slice(0, -1).toLowerCase(), trimSpace(line.slice(0, -1))])
    at = lineFeed + 1
  }
}

function sizeOf(fields: Fields): number {
  return fields.reduce((sum, [name, value]) => sum + name.length + value.length, 0)
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

/** The same without empty lists, which mean nothing (RFC 9110 §5.6.1). */
export function listsOf(request: Pick<Request, 'fields'>, name: string): readonly string[] {
  const isMember = (text: string): boolean => trimSpace(text) !== ''
  return valuesOf(request, name).filter((value) => value.split(',').some(isMember))
}

export function has(request: Pick<Request, 'fields'>, name: string): boolean {
  return valuesOf(request, name).length > 0
}

/**
 * Whether the answer to this has no body because of HEAD; undefined if that is unknown, because a
 * parser that gave up may have sent it.
 */
export function isHead(reading: Reading | undefined): boolean | undefined {
  if (reading?.kind === 'malformed' && !reading.mayBeHead) return false
  if (reading?.kind !== 'request') return undefined
  const { method, broken, doubts, version } = reading
  if (method !== 'HEAD') return false
  const isSure = broken.length === 0 && doubts.length === 0 && /^1\.[01]$/.test(version)
  return isSure ? true : undefined
}
