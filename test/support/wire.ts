import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { connect as connectSecurely } from 'node:tls'
import { ResponseReader, type WireAnswer } from './response.ts'
import { PATIENCE_MS } from './time.ts'
import { token } from './tokens.ts'

export type { WireAnswer }

const BEGINNINGS_MAX = 20
/** What comes within this time is read at once. */
const GATHERING_MS = 2

export interface HeadOptions {
  readonly token?: string | undefined
  /**
   * Header lines as they are, without their ends. A Host and alice's Authorization come first by
   * default.
   */
  readonly lines?: readonly string[]
  readonly host?: string | undefined
  readonly version?: string
}

/** A request's line and headers, with the empty line. */
export function head(method: string, target: string, options: HeadOptions = {}): string {
  const { lines = [], version = '1.1' } = options
  const host = 'host' in options ? options.host : 'plants.test'
  const bearer = 'token' in options ? options.token : token('alice')
  const all = [`${method} ${target} HTTP/${version}`]
  if (host !== undefined) all.push(`Host: ${host}`)
  if (bearer !== undefined) all.push(`Authorization: Bearer ${bearer}`)
  return `${[...all, ...lines].join('\r\n')}\r\n\r\n`
}

export const JSON_TYPE = 'Content-Type: application/json'
export const CHUNKED = 'Transfer-Encoding: chunked'

/** The start of a POST of JSON with these further headers. */
export function posting(
  lines: readonly string[],
  { target = '/plants', ...options }: HeadOptions & { readonly target?: string } = {},
): string {
  return head('POST', target, { ...options, lines: [JSON_TYPE, ...lines] })
}

/** One chunk of a body. */
export function chunk(text: string): string {
  return `${text.length.toString(16)}\r\n${text}\r\n`
}

/** A whole body in chunks. */
export function chunks(...texts: readonly string[]): string {
  return `${texts.map(chunk).join('')}0\r\n\r\n`
}

/** A whole POST of a plant. */
export function postBytes(
  plant: unknown,
  { lines = [], ...options }: Parameters<typeof posting>[1] = {},
): string {
  const text = typeof plant === 'string' ? plant : JSON.stringify(plant)
  const body = Buffer.from(text).toString('latin1')
  return posting([`Content-Length: ${body.length}`, ...lines], options) + body
}

/** A port of loopback, the path of a unix socket, or a port with the authority of its TLS. */
export type Target = number | string | { readonly port: number; readonly ca: string }

/**
 * A connection whose bytes the test chooses. All text is latin1: a character is a byte. It keeps no
 * process alive, and the service ends it when it closes: a test destroys it only to leave early.
 */
export class Wire {
  readonly socket: Socket
  /** Set when the connection was reset. */
  error: Error | undefined
  /** Everything that came so far. */
  text = ''
  readonly #reader = new ResponseReader((index) => this.#heads.includes(index))
  #heads: readonly number[] = []
  /** What no `answers` has read yet: only the caller knows which requests were HEAD. */
  #unread = ''
  #ended = false

  constructor(socket: Socket) {
    this.socket = socket
    socket.setEncoding('latin1').setNoDelay(true).unref()
    socket.on('data', (chunk: string) => {
      this.text += chunk
      this.#unread += chunk
    })
    socket.on('end', () => (this.#ended = true))
    socket.on('error', (error) => (this.error = error))
    socket.on('close', () => (this.#ended = true))
  }

  static async to(target: Target): Promise<Wire> {
    const socket = socketTo(target)
    await once(socket, typeof target === 'object' ? 'secureConnect' : 'connect')
    return new Wire(socket)
  }

  write(bytes: string | Uint8Array): this {
    this.socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes)
    return this
  }

  /** Sends no more; what comes is still read. */
  halfClose(): this {
    this.socket.end()
    return this
  }

  /** Whether the service has closed its side, or the connection is gone. */
  get ended(): boolean {
    return this.#ended
  }

  /**
   * Waits for this many answers in all, interim ones not counted. `heads` are the indices of the
   * requests that were HEAD.
   */
  async answers(count: number, heads: readonly number[] = []): Promise<WireAnswer[]> {
    for (;;) {
      const seen = this.#read(heads)
      if (seen.length >= count) return seen
      if (this.#ended)
        throw new Error(
          `the connection ended after ${seen.length} answers of ${count}: ` +
            JSON.stringify(this.text.slice(-2000)),
        )
      await this.#change(`${seen.length} answers of ${count}`)
    }
  }

  /**
   * Waits for the end of the connection and returns all answers; anything that is no whole answer
   * is a failure.
   */
  async allAnswers(heads: readonly number[] = []): Promise<WireAnswer[]> {
    await this.end()
    const seen = this.#read(heads)
    const { rest } = this.#reader
    if (rest !== '')
      throw new Error(`after ${seen.length} answers: ${JSON.stringify(rest.slice(0, 2000))}`)
    return seen
  }

  /** Waits for the end of the connection. */
  async end(): Promise<void> {
    while (!this.#ended) await this.#change('no end')
  }

  destroy(): void {
    this.socket.destroy()
  }

  #read(heads: readonly number[]): WireAnswer[] {
    this.#heads = heads
    this.#reader.push(this.#unread, this.#ended)
    this.#unread = ''
    return [...this.#reader.answers]
  }

  async #change(seen: string): Promise<void> {
    const { socket } = this
    await new Promise<void>((resolve, reject) => {
      const done = (): void => {
        clearTimeout(timer)
        for (const event of ['data', 'end', 'close']) socket.off(event, done)
        setTimeout(resolve, GATHERING_MS)
      }
      const timer = setTimeout(() => {
        const last = JSON.stringify(this.text.slice(-500))
        reject(new Error(`after ${PATIENCE_MS} ms: ${seen}; ${last}`))
      }, PATIENCE_MS)
      for (const event of ['data', 'end', 'close']) socket.on(event, done)
    })
  }
}

function socketTo(target: Target): Socket {
  const allowHalfOpen = true
  if (typeof target === 'string') return connect({ path: target, allowHalfOpen })
  const port = typeof target === 'number' ? target : target.port
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen })
  if (typeof target === 'number') return socket
  // The certificate names no host.
  const checkServerIdentity = (): undefined => undefined
  return connectSecurely({ socket, ca: target.ca, checkServerIdentity })
}

/** Uses a new connection, which is destroyed in any case. */
async function withWire<T>(target: Target, use: (wire: Wire) => Promise<T>): Promise<T> {
  const wire = await Wire.to(target)
  try {
    return await use(wire)
  } finally {
    wire.destroy()
  }
}

/** Sends these bytes and no more; returns all answers until the service closes the connection. */
export function converse(target: Target, bytes: string | Uint8Array): Promise<WireAnswer[]> {
  return withWire(target, (wire) => wire.write(bytes).halfClose().allAnswers())
}

/** All answers until the service closes the connection; the client keeps its side open. */
export function answersUntilEnd(target: Target, bytes: string): Promise<WireAnswer[]> {
  return withWire(target, (wire) => wire.write(bytes).allAnswers())
}

/** This many answers to these bytes; the client keeps the connection open until they have come. */
export function answersTo(
  target: Target,
  bytes: string | Uint8Array,
  count: number,
  heads: readonly number[] = [],
): Promise<WireAnswer[]> {
  return withWire(target, (wire) => wire.write(bytes).answers(count, heads))
}

/** The first answer to these bytes; the client keeps the connection open until it has come. */
export async function firstAnswer(
  target: Target,
  bytes: string | Uint8Array,
  heads: readonly number[] = [],
): Promise<WireAnswer> {
  const [answer] = await answersTo(target, bytes, 1, heads)
  if (answer === undefined) throw new Error('no answer')
  return answer
}

/**
 * All answers to the beginning of a request that never goes on. On a loaded machine the service may
 * read nothing of it in time and close the connection without an answer: then this starts again.
 */
export async function answersToHalf(
  target: Target,
  begin: (wire: Wire) => void | Promise<void>,
  read = (wire: Wire) => wire.allAnswers(),
): Promise<WireAnswer[]> {
  for (let tries = 0; ; tries++) {
    const found = await withWire(target, async (wire) => {
      await begin(wire)
      await wire.end()
      return wire.text !== '' || tries === BEGINNINGS_MAX ? await read(wire) : undefined
    })
    if (found) return found
  }
}
