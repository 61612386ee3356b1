/* The body of a request, which is read or dropped. */

import type { IncomingMessage } from 'node:http'
import { ClientGone, HttpError } from '../errors.ts'
import { type Hold, Overloaded } from '../limits/budget.ts'
import { valuesOf } from './headers.ts'

const NOT_BYTES = 'the body was read before the handler: mount it before body parsers'
/** How much is dropped of a body that is not wanted, unless the responder allows more. */
const STRANGER_DROP_MAX_BYTES = 64 * 1024

/**
 * - unread: nothing takes it, and Node holds what comes.
 * - collecting: its socket is stopped, and what the read under way brings is collected.
 * - reading: `read` has not settled.
 * - dropping: what comes is dropped.
 * - done: it was read to its end, or there is none. What is dropped stays `dropping`.
 */
type BodyState = 'unread' | 'collecting' | 'reading' | 'dropping' | 'done'

export class Body {
  /** In bytes; 0 for a chunked body, and without a body. Node has checked the number. */
  readonly contentLength: number
  readonly isChunked: boolean
  /** How much is dropped of it if it is not wanted. */
  dropMaxBytes = STRANGER_DROP_MAX_BYTES
  /** Called if more comes of it than is dropped. */
  onTooLong: (() => void) | undefined
  /** Sends "100 Continue". Set while the client waits for it. */
  sendContinue: (() => void) | undefined
  readonly #req: IncomingMessage
  #state: BodyState
  /** Ends the collecting or reading under way. Returns what was collected. */
  #stop: (() => Buffer | undefined) | undefined

  constructor(req: IncomingMessage) {
    this.#req = req
    this.contentLength = Number(valuesOf(req.rawHeaders, 'content-length')[0] ?? 0)
    this.isChunked = valuesOf(req.rawHeaders, 'transfer-encoding').length > 0
    const isComing = this.isChunked || this.contentLength > 0
    this.#state = isComing && !req.readableEnded ? 'unread' : 'done'
  }

  get state(): BodyState {
    return this.#state
  }

  /**
   * Stops the socket until a chunked body is read or dropped, and collects what the read under way
   * brings. Node would hold each chunk by itself: 2.7 MiB for one read of one-byte chunks.
   */
  collect(): void {
    if (!this.isChunked || this.#state !== 'unread') return
    this.#state = 'collecting'
    const req = this.#req
    let held = Buffer.alloc(0)
    let length = 0
    const take = (chunk: Buffer): void => {
      const needed = length + chunk.length
      if (needed > held.length) held = Buffer.concat([held], 2 * needed)
      length += chunk.copy(held, length)
    }
    this.#stop = () => {
      this.#state = 'unread'
      this.#stop = undefined
      req.off('data', take).socket.resume()
      // A copy: the buffer may be twice as long.
      return Buffer.from(held.subarray(0, length))
    }
    // It flows at once, so that each chunk is taken while Node parses the next.
    req.on('data', take).read(0)
    req.socket.pause()
  }

  /**
   * Reads it to its end. Its memory is reserved in `hold` as it grows. Its chunks are copied into
   * one buffer: a list of them would take 250 bytes for a chunk of one byte.
   * @throws HttpError `bodyTooLarge` after `maxBytes`, Overloaded without room. The rest is then
   * unread.
   * @throws ClientGone if it ends early, or is dropped.
   */
  read(maxBytes: number, hold: Hold): Promise<Buffer> {
    const req = this.#req
    const collected = this.#stop?.()
    // The application of another server has read it, or reads it.
    const isRead = req.readableDidRead || req.readableEnded || req.listenerCount('readable') > 0
    if (!collected && isRead) throw new Error(NOT_BYTES)
    this.sendContinue?.()
    this.sendContinue = undefined
    this.#state = 'reading'
    return new Promise((resolve, reject) => {
      let held: Buffer = Buffer.alloc(0)
      let length = 0
      const take = (chunk: Buffer | string): void => {
        // The application has set its encoding.
        if (typeof chunk === 'string') return settle(new Error(NOT_BYTES))
        const needed = length + chunk.length
        if (needed > maxBytes) return settle(new HttpError('bodyTooLarge'))
        if (needed > held.length) {
          const capacity = Math.max(needed, Math.min(2 * length, this.contentLength || maxBytes))
          if (!hold.set(Math.max(capacity, this.contentLength))) return settle(new Overloaded())
          // Most bodies are one chunk, which is not copied.
          held = length === 0 ? chunk : Buffer.concat([held.subarray(0, length)], capacity)
        }
        if (length > 0) chunk.copy(held, length)
        length = needed
      }
      const settle = (error?: Error): void => {
        this.#state = error ? 'unread' : 'done'
        // What was read must not stay in memory while the store works.
        this.#stop = undefined
        req.off('data', take).off('end', settle)
        if (error) reject(error)
        else resolve(held.subarray(0, length))
      }
      this.#stop = () => void settle(new ClientGone())
      // The application of another server may have paused the request.
      req.on('end', settle).on('data', take).resume().read(0)
      if (collected) take(collected)
      if (req.readableEnded) settle()
    })
  }

  /**
   * Drops what is left of it, and what was collected. To be called as soon as it is known that it
   * is not wanted: Node would hold what comes of it.
   */
  drop(maxBytes = this.dropMaxBytes): void {
    let left = maxBytes - (this.#stop?.()?.length ?? 0)
    // Ends the empty stream of a request without a body. Else Node drops that body, in five turns
    // of its queue: a tenth of the time of a cached list (`make bench WORKLOADS=mixed`).
    if (this.#state === 'done' && !this.#req.readableEnded) this.#req.read()
    if (this.#state !== 'unread') return
    this.#state = 'dropping'
    const count = (chunk: Buffer): void => {
      left -= chunk.length
      if (left < 0) this.onTooLong?.()
    }
    // It flows at once, so that Node holds nothing of it.
    this.#req.on('data', count).resume().read(0)
  }
}
