import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { PATIENCE_MS } from './time.ts'
import { token } from './tokens.ts'

/** One answer as it stood on the wire. Header names are in lower case, each with all its lines. */
export interface WireAnswer {
  readonly status: number
  readonly version: string
  readonly headers: ReadonlyMap<string, readonly string[]>
  readonly body: string
}

const BEGINNINGS_MAX = 20

export interface HeadOptions {
  readonly token?: string | undefined
  /**
   * Lines as they are, without their ends; a Host and an Authorization of alice's come first unless
   * told otherwise.
   */
  readonly lines?: readonly string[]
  readonly host?: string | undefined
  readonly version?: string
}

/** The head of a request, its empty line included. */
export function head(method: string, target: string, options: HeadOptions = {}): string {
  const { lines = [], version = '1.1' } = options
  const host = 'host' in options ? options.host : 'plants.test'
  const bearer = 'token' in options ? options.token : token('alice')
  const all = [`${method} ${target} HTTP/${version}`]
  if (host !== undefined) all.push(`Host: ${host}`)
  if (bearer !== undefined) all.push(`Authorization: Bearer ${bearer}`)
  return `${[...all, ...lines].join('\r\n')}\r\n\r\n`
}

/** A whole POST of a plant. */
export function postBytes(plant: unknown, { lines = [], ...options }: HeadOptions = {}): string {
  const body = Buffer.from(typeof plant === 'string' ? plant : JSON.stringify(plant)).toString(
    'latin1',
  )
  return (
    head('POST', '/plants', {
      ...options,
      lines: ['Content-Type: application/json', `Content-Length: ${body.length}`, ...lines],
    }) + body
  )
}

/** A connection whose bytes the test decides. All text is latin1: a character is a byte. */
export class Wire {
  readonly socket: Socket
  /** Set when the connection was reset. */
  error: Error | undefined
  #text = ''
  readonly #answers: WireAnswer[] = []
  /** What has come behind the last whole answer. */
  #rest = ''
  #ended = false

  constructor(socket: Socket) {
    this.socket = socket
    socket.setEncoding('latin1').setNoDelay(true)
    socket.on('data', (chunk: string) => {
      this.#text += chunk
      this.#rest += chunk
    })
    socket.on('end', () => (this.#ended = true))
    socket.on('error', (error) => (this.error = error))
    socket.on('close', () => (this.#ended = true))
  }

  /** All that has come so far. */
  get text(): string {
    return this.#text
  }

  static async to(target: number | string): Promise<Wire> {
    const socket =
      typeof target === 'string'
        ? connect({ path: target, allowHalfOpen: true })
        : connect({ port: target, host: '127.0.0.1', allowHalfOpen: true })
    await once(socket, 'connect')
    return new Wire(socket)
  }

  write(bytes: string | Uint8Array): this {
    this.socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes)
    return this
  }

  /** Sends no more; what comes back is still read. */
  halfClose(): this {
    this.socket.end()
    return this
  }

  /** Whether the service has said that no more comes, or the connection is gone. */
  get ended(): boolean {
    return this.#ended
  }

  /**
   * Waits for so many answers in all, interim ones not counted. `heads` are the requests that were
   * HEAD, by their place.
   */
  async answers(count: number, heads: readonly number[] = []): Promise<WireAnswer[]> {
    for (;;) {
      this.#read(heads)
      const seen = this.#answers.length
      if (seen >= count) return [...this.#answers]
      if (this.#ended)
        throw new Error(
          `the connection ended after ${seen} answers of ${count}: ${JSON.stringify(this.text.slice(-2000))}`,
        )
      await this.#change(`${seen} answers of ${count}`)
    }
  }

  /**
   * Waits for the end of the connection and gives all answers; anything that is no whole answer is
   * a failure.
   */
  async allAnswers(heads: readonly number[] = []): Promise<WireAnswer[]> {
    await this.end()
    this.#read(heads)
    if (this.#rest !== '')
      throw new Error(
        `behind ${this.#answers.length} answers: ${JSON.stringify(this.#rest.slice(0, 2000))}`,
      )
    return [...this.#answers]
  }

  /** Waits for the end of the connection. */
  async end(): Promise<void> {
    while (!this.#ended) await this.#change('no end')
  }

  destroy(): void {
    this.socket.destroy()
  }

  #read(heads: readonly number[]): void {
    for (;;) {
      const found = readAnswer(this.#rest, heads.includes(this.#answers.length), this.#ended)
      if (!found) return
      if (found.answer) this.#answers.push(found.answer)
      this.#rest = found.rest
    }
  }

  async #change(seen: string): Promise<void> {
    const { socket } = this
    await new Promise<void>((resolve, reject) => {
      const done = (): void => {
        clearTimeout(timer)
        for (const event of ['data', 'end', 'close']) socket.off(event, done)
        // What comes at once is looked at once, and what is long, from its beginning each time,
        // more seldom.
        setTimeout(resolve, Math.min(2 + this.#rest.length / 2 ** 16, 50))
      }
      const timer = setTimeout(
        () =>
          reject(
            new Error(`after ${PATIENCE_MS} ms: ${seen}; ${JSON.stringify(this.text.slice(-500))}`),
          ),
        PATIENCE_MS,
      )
      for (const event of ['data', 'end', 'close']) socket.on(event, done)
    })
  }
}

/**
 * One exchange on a connection of its own, of which the service may make what it likes: all answers
 * until it closes.
 */
export async function converse(
  target: number | string,
  bytes: string | Uint8Array,
): Promise<WireAnswer[]> {
  const wire = await Wire.to(target)
  try {
    return await wire.write(bytes).halfClose().allAnswers()
  } finally {
    wire.destroy()
  }
}

/**
 * All answers to the beginning of a request, of which no more comes. A service that reads nothing
 * of it in time, as on a machine that is held up, lets go of the client without a word: then it is
 * begun again.
 */
export async function answersToHalf(
  target: number | string,
  begin: (wire: Wire) => void | Promise<void>,
  read = (wire: Wire) => wire.allAnswers(),
): Promise<WireAnswer[]> {
  for (let tries = 0; ; tries++) {
    const wire = await Wire.to(target)
    try {
      await begin(wire)
      await wire.end()
      if (wire.text !== '' || tries === BEGINNINGS_MAX) return await read(wire)
    } finally {
      wire.destroy()
    }
  }
}

/** The first answer to these bytes; the connection is left open by the client until it has it. */
export async function firstAnswer(
  target: number | string,
  bytes: string | Uint8Array,
  heads: readonly number[] = [],
): Promise<WireAnswer> {
  const wire = await Wire.to(target)
  try {
    const [answer] = await wire.write(bytes).answers(1, heads)
    if (answer === undefined) throw new Error('no answer')
    return answer
  } finally {
    wire.destroy()
  }
}

/** Undefined while the next answer is not whole; without an answer for an interim one. */
function readAnswer(
  text: string,
  toHead: boolean,
  ended: boolean,
): { readonly answer?: WireAnswer; readonly rest: string } | undefined {
  const end = text.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const [statusLine = '', ...lines] = text.slice(0, end).split('\r\n')
  const [, version = '', statusText = ''] =
    /^HTTP\/(1\.[01]) ([0-9]{3}) /.exec(`${statusLine} `) ?? []
  if (version === '') throw new Error(`no status line: ${JSON.stringify(text.slice(0, 200))}`)
  const status = Number(statusText)
  const headers = new Map<string, string[]>()
  for (const line of lines) {
    const [, name = '', value = ''] = /^([^:]+): ?(.*)$/s.exec(line) ?? []
    headers.set(name.toLowerCase(), [...(headers.get(name.toLowerCase()) ?? []), value])
  }
  const after = text.slice(end + 4)
  if (status < 200) return { rest: after }
  const found =
    status === 204 || toHead ? { body: '', rest: after } : readBody(after, headers, ended)
  return found && { answer: { status, version, headers, body: found.body }, rest: found.rest }
}

/** Undefined while the body is not whole. */
function readBody(
  text: string,
  headers: ReadonlyMap<string, readonly string[]>,
  ended: boolean,
): { readonly body: string; readonly rest: string } | undefined {
  const length = headers.get('content-length')?.[0]
  if (length !== undefined)
    return text.length < Number(length)
      ? undefined
      : { body: text.slice(0, Number(length)), rest: text.slice(Number(length)) }
  if (headers.get('transfer-encoding')?.[0] !== 'chunked')
    return ended ? { body: text, rest: '' } : undefined
  const pieces: string[] = []
  for (let at = 0; ; ) {
    const lineEnd = text.indexOf('\r\n', at)
    if (lineEnd < 0) return undefined
    const size = Number.parseInt(text.slice(at, lineEnd), 16)
    if (Number.isNaN(size)) throw new Error(`no chunk: ${JSON.stringify(text.slice(at, at + 200))}`)
    const start = lineEnd + 2
    if (text.length < start + size + 2) return undefined
    if (size === 0) return { body: pieces.join(''), rest: text.slice(start + 2) }
    pieces.push(text.slice(start, start + size))
    at = start + size + 2
  }
}
