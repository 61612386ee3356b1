/**
 * Every failure that a caller can meet: its error value and its message. The value is the HTTP
 * status times 100 plus a running number. Values and conditions never change once released.
 * Messages are for people. A test compares the README's table with this one.
 */
export const CATALOGUE = {
  malformedRequest: [40001, 'The request is not well-formed HTTP/1.1 or HTTP/1.0.'],
  hostInvalid: [40002, 'Send exactly one valid Host header.'],
  authorizationMalformed: [40003, 'Send one Authorization header: Bearer <token>, without quotes.'],
  contentTypeRepeated: [40004, 'Send exactly one Content-Type header.'],
  bodyNotUtf8: [40005, 'The body must be UTF-8 without a byte order mark.'],
  bodyNotJson: [40006, 'The body must be one JSON object.'],
  memberRepeated: [40007, 'The plant has two members of the same name.'],
  nameInvalid: [40008, '"name" is required and must be a string of valid Unicode.'],
  idInvalid: [40009, '"id" is required: an integer from -2^63 to 2^63 - 1, without quotes.'],
  tagInvalid: [40010, '"tag" must be a string of valid Unicode; omit it if there is no tag.'],
  limitInvalid: [40011, 'Send "limit" at most once, as an integer from 0 to 2147483647.'],
  afterInvalid: [40012, 'Send "after" at most once, as a cursor from one of your Link headers.'],
  tokenMissing: [40101, 'Send a token of your issuer in a header: Authorization: Bearer <token>.'],
  tokenInvalid: [40102, 'The token is no whole JWT, or its signature is wrong: get a new one.'],
  tokenExpired: [40103, 'The token has expired: get a new one.'],
  tokenUnacceptable: [40104, 'The token is for another service, not valid yet, or lacks a claim.'],
  scopeMissing: [40301, 'The token lacks the scope that this request requires.'],
  overQuota: [40302, 'With this plant you would have more data than one owner may have.'],
  pathUnknown: [40401, 'Nothing is at this path: plants are at /plants, without a final slash.'],
  methodNotAllowed: [40501, 'This method is not allowed: use one that the Allow header names.'],
  requestTimeout: [40801, 'The request took too long to arrive.'],
  idTaken: [40901, 'You already have a plant with this id and other content: use another id.'],
  bodyTooLarge: [41301, 'The body is too large.'],
  mediaTypeUnsupported: [41501, 'Send the body as Content-Type: application/json, in UTF-8.'],
  contentEncodingUnsupported: [41502, 'Send the body without a Content-Encoding.'],
  expectationFailed: [41701, 'The only supported expectation is 100-continue.'],
  rateLimited: [42901, 'Too many requests: try again later.'],
  headersTooLarge: [43101, 'The request line and headers are too large, or there are too many.'],
  internal: [50001, 'Internal error: try again, or give the Request-Id to the operator.'],
  methodUnknown: [50101, 'This method is not implemented.'],
  keysUnavailable: [50301, 'The keys that verify tokens are not available: try again later.'],
  storageUnavailable: [50302, 'The store is not available: try again. Repeating a POST is safe.'],
  overloaded: [50303, 'Too much work is waiting: try again later.'],
  versionUnsupported: [50501, 'HTTP/2 is not supported here: use HTTP/1.1.'],
  storageFull: [50701, 'The store is full: plants can be read, but not added.'],
} as const satisfies Readonly<Record<string, readonly [error: number, message: string]>>

export type Condition = keyof typeof CATALOGUE

/**
 * A failure to answer with an entry of the catalogue. `cause` is for the log alone; `detail` is a
 * sentence for the client after the message.
 */
export class HttpError extends Error {
  readonly condition: Condition
  readonly error: number
  readonly status: number
  /** Name and value in turn, as `writeHead` takes them. */
  readonly headers: readonly string[]

  constructor(condition: Condition, headers: readonly string[] = [], cause?: unknown, detail = '') {
    const [error, message] = CATALOGUE[condition]
    super(detail === '' ? message : `${message} ${detail}`, { cause })
    this.condition = condition
    this.error = error
    this.status = Math.floor(error / 100)
    this.headers = headers
  }
}

/** The client left, or did not send its whole body: no response is sent. */
export class ClientGone extends Error {}

/**
 * True for an error of any realm. Jest and Vitest run programs in a `vm` context: Node's own errors
 * are not `instanceof` its `Error`.
 */
export function isError(value: unknown): value is Error {
  if (typeof value !== 'object' || value === null || !('stack' in value)) return false
  return 'message' in value && typeof value.message === 'string'
}

/** The code of an error of Node ("ENOSPC") or of jose, or undefined for any other error. */
export function errorCodeOf(error: unknown): string | undefined {
  const code = isError(error) && 'code' in error ? error.code : undefined
  return typeof code === 'string' ? code : undefined
}

/** The configuration cannot be used. Each problem is one line that says what to change. */
export class ConfigError extends Error {
  readonly problems: readonly string[]

  constructor(problems: readonly string[]) {
    super(problems.join('\n'))
    this.problems = problems
  }
}
ConfigError.prototype.name = 'ConfigError'

/** The command line is wrong, and the message says how. */
export class UsageError extends Error {}

/** Causes of causes in a reason: they may form a circle. */
const MAX_CAUSES = 8

/**
 * An error in one line, with its causes: the message of a failed `fetch` alone says nothing. An
 * AggregateError may have an empty message; then its code is used. A message may have its cause.
 */
export function reasonOf(error: unknown, causes = MAX_CAUSES): string {
  if (!isError(error)) return String(error)
  const code = errorCodeOf(error)
  // Who has no access: in a container it is not who the volume was made for.
  const ids = ` (this process is uid ${process.getuid?.()}, gid ${process.getgid?.()})`
  const message = `${error.message || code || error.name}${code === 'EACCES' ? ids : ''}`
  const cause = isError(error.cause) && causes > 0 ? reasonOf(error.cause, causes - 1) : ''
  return cause === '' || message.includes(cause) ? message : `${message}: ${cause}`
}

/**
 * Returns what `read` makes of a file, or of what is passed in its place.
 * @throws Error with `problem` and the reason, without the path: it may be a secret instead.
 */
export function withoutPath<T>(problem: string, read: () => T): T {
  try {
    return read()
  } catch (error) {
    throw new Error(`${problem}: ${reasonOf(error).replace(/, [a-z]+ '.*'/s, '')}`)
  }
}

/** Controls, formats such as marks of direction, half a surrogate pair, and line separators. */
const UNSAFE = /[\p{C}\p{Zl}\p{Zp}]/gu

/**
 * A text for people, or JSON that they may look at: what a terminal would obey instead of showing
 * it is escaped as in JSON. Texts come from files, from an issuer, from etcd, or from a setting.
 */
export function escaped(text: string): string {
  const escape = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`
  return text.replace(UNSAFE, (character) => character.split('').map(escape).join(''))
}

/** `1 plant`, `2 plants`. */
export function counted(count: number, noun: string): string {
  return `${count} ${noun}${count === 1 ? '' : 's'}`
}
