// The load generator's process: each connection sends its next request when the last is answered.
import { connect, type Socket } from 'node:net'
import { cpuUsage } from 'node:process'
import { percentiles, type Percentiles } from '../figures.ts'
import { reasonOf } from '../../dist/errors.js'
import { type Asked, requests } from './requests.ts'

export interface LoadSpec extends Asked {
  readonly id: number
  readonly port: number
  readonly connections: number
  /** A run ends after so long, or by a `stop`. */
  readonly seconds: number
  /** Each connection waits so long between an answer and the next request. */
  readonly pauseMs: number
  /** Whether the result has every single sample. */
  readonly samples: boolean
}

/** Latencies are from a request to the last byte of its answer. */
export interface LoadResult extends Percentiles {
  readonly requests: number
  readonly seconds: number
  /** The load generator's own time on its core: near 1 it measures itself. */
  readonly loadShare: number
  readonly samples: readonly Sample[]
}

export interface Sample {
  /** Milliseconds since 1970. */
  readonly endMs: number
  readonly micros: number
}

export type ToLoad = { readonly run: LoadSpec } | { readonly stop: number }
export type FromLoad =
  | { readonly id: number; readonly result: LoadResult }
  | { readonly id: number; readonly error: string }

/** Bounds the memory of the load generator: no run comes near it. */
const REQUESTS_MAX = 4_000_000
const ANSWER_MS_MAX = 10_000
const HEAD_END = Buffer.from('\r\n\r\n')
/** JSON has no raw line end, so this can only be the end of a chunked body. */
const CHUNKED_END = '\r\n0\r\n\r\n'
const OPENING_BRACE = 0x7b
/** Every read of every socket goes here, and is used before the next one. */
const INCOMING = Buffer.alloc(256 * 1024)

/** One connection, with as much of HTTP as the two servers use. Anything but a 200 is a failure. */
class Connection {
  readonly #socket: Socket
  #answered: (plants: number) => void = () => {}
  /** The start of headers that are not whole yet. */
  #begun: Buffer | undefined
  /**
   * Bytes of the body that are missing; undefined while headers are read, Infinity for a chunked
   * body.
   */
  #left: number | undefined
  #tail = ''
  #objects = 0
  #done = false

  constructor(port: number, ready: () => void, failed: (error: Error) => void) {
    this.#socket = connect({
      host: '127.0.0.1',
      port,
      noDelay: true,
      onread: { buffer: INCOMING, callback: (count) => this.#read(count, failed) },
    })
    this.#socket.once('connect', ready)
    this.#socket.on('error', failed)
    this.#socket.on('close', () => {
      if (!this.#done) failed(new Error('the server closed a connection'))
    })
  }

  /** `answered` is told how many objects a chunked body had. */
  send(request: string | Buffer, answered: (objects: number) => void): void {
    this.#answered = answered
    if (typeof request === 'string') this.#socket.write(request, 'latin1')
    else this.#socket.write(request)
  }

  close(): void {
    this.#done = true
    this.#socket.destroy()
  }

  #read(count: number, failed: (error: Error) => void): boolean {
    try {
      this.#take(INCOMING.subarray(0, count))
    } catch (error) {
      failed(new Error(reasonOf(error)))
    }
    return true
  }

  #take(bytes: Buffer): void {
    let body = bytes
    if (this.#left === undefined) {
      const whole = this.#begun ? Buffer.concat([this.#begun, bytes]) : bytes
      const end = whole.indexOf(HEAD_END)
      if (end < 0) {
        this.#begun = Buffer.from(whole)
        return
      }
      this.#begun = undefined
      const head = whole.toString('latin1', 0, end)
      body = whole.subarray(end + HEAD_END.length)
      if (!head.startsWith('HTTP/1.1 200 '))
        throw new Error(
          `an answer under load: ${head.slice(0, 60)} ${body.toString('utf8').slice(0, 200)}`,
        )
      const length = /content-length: (\d+)/i.exec(head)?.[1]
      this.#left = length === undefined ? Infinity : Number(length)
      this.#tail = ''
      this.#objects = 0
    }
    if (this.#left === Infinity) {
      for (const byte of body) if (byte === OPENING_BRACE) this.#objects += 1
      this.#tail = (
        this.#tail + body.toString('latin1', Math.max(0, body.length - CHUNKED_END.length))
      ).slice(-CHUNKED_END.length)
      if (this.#tail === CHUNKED_END) this.#end()
      return
    }
    this.#left -= body.length
    if (this.#left < 0) throw new Error('more came than was asked for')
    if (this.#left === 0) this.#end()
  }

  #end(): void {
    this.#left = undefined
    this.#answered(this.#objects)
  }
}

const stops = new Map<number, () => void>()

async function run(spec: LoadSpec): Promise<LoadResult> {
  const next = requests(spec)
  const open: Connection[] = []
  let fail: (error: Error) => void = () => {}
  const failed = new Promise<never>((_, reject) => (fail = reject))
  // It may fail when the race below is over.
  failed.catch(() => {})
  const watchdog = setTimeout(
    () => fail(new Error('an answer never came')),
    spec.seconds * 1000 + ANSWER_MS_MAX,
  )
  try {
    for (let i = 0; i < spec.connections; i++) {
      // Node accepts one connection a tick: connections that open and send at once are served
      // unevenly, which would fill the tail. A first answer shows that each was accepted.
      const opening = new Promise<void>((resolve) => {
        const connection = new Connection(
          spec.port,
          () => (spec.kind === 'list' ? resolve() : connection.send(next(), () => resolve())),
          fail,
        )
        open.push(connection)
      })
      await Promise.race([opening, failed])
    }
    return await Promise.race([measure(spec, open, next, fail), failed])
  } finally {
    clearTimeout(watchdog)
    stops.delete(spec.id)
    for (const connection of open) connection.close()
  }
}

function measure(
  spec: LoadSpec,
  open: readonly Connection[],
  next: () => string | Buffer,
  fail: (error: Error) => void,
): Promise<LoadResult> {
  return new Promise((resolve) => {
    const micros: number[] = []
    const ends: number[] = []
    let sent = 0
    let busy = open.length
    const cpu = cpuUsage()
    const epochMs = Date.now() - performance.now()
    const startedAt = performance.now()
    let deadline = startedAt + spec.seconds * 1000
    stops.set(spec.id, () => (deadline = 0))

    const go = (connection: Connection): void => {
      const sentAt = performance.now()
      if (sentAt < deadline && sent < REQUESTS_MAX) {
        sent += 1
        connection.send(next(), (objects) => {
          const at = performance.now()
          micros.push((at - sentAt) * 1000)
          if (spec.samples) ends.push(epochMs + at)
          if (spec.kind === 'list' && objects !== spec.plants)
            return fail(new Error(`a list of ${objects} plants instead of ${spec.plants}`))
          if (spec.pauseMs > 0) setTimeout(go, spec.pauseMs, connection)
          else go(connection)
        })
        return
      }
      busy -= 1
      if (busy > 0) return
      const wallMs = performance.now() - startedAt
      const { user, system } = cpuUsage(cpu)
      const samples = ends.map((endMs, i) => ({ endMs, micros: micros[i] ?? 0 }))
      resolve({
        requests: micros.length,
        seconds: wallMs / 1000,
        ...percentiles(micros),
        loadShare: (user + system) / 1000 / wallMs,
        samples,
      })
    }
    for (const connection of open) go(connection)
  })
}

function tell(message: FromLoad): void {
  process.send?.(message)
}

// Only the benchmark sends, and nothing else.
process.on('message', (message: ToLoad) => {
  if ('stop' in message) {
    stops.get(message.stop)?.()
    return
  }
  const { id } = message.run
  run(message.run).then(
    (result) => tell({ id, result }),
    (error: unknown) => tell({ id, error: reasonOf(error) }),
  )
})
process.on('disconnect', () => process.exit(1))
