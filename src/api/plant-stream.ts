import { setTimeout as sleep } from 'node:timers/promises'
import { PIECE_MAX_BYTES, type BodyStream } from '../http/response.ts'
import type { Hold } from '../ops/budget.ts'
import type { PlantList } from '../plants/store.ts'
import type { Call } from './call.ts'

const COMMA = 0x2c
const EMPTY_LIST_BYTES = '[]'.length
/** How often a list without room looks whether it may go on. */
const ROOM_CHECK_MS = 100

/**
 * A list as one JSON array, made while its client reads it: one chunk at a time is in memory, and
 * counts against the budget for responses. The next chunk takes the room of the one before it, and
 * waits for the owner's turn. If there is no room, one list of each owner still goes on. So an
 * owner may exceed the budget by one chunk. The connection's clock bounds these waits.
 */
export class PlantStream implements BodyStream {
  readonly #list: PlantList
  readonly #call: Call
  readonly #hold: Hold
  #first: Buffer | undefined
  #closed = false
  /** Whether this list is the one of its owner that may hold more than there is room for. */
  #exceeds = false

  constructor(list: PlantList, first: string, call: Call) {
    this.#list = list
    this.#first = Buffer.from(first)
    this.#call = call
    this.#hold = call.options.answers.hold(call.owner, 0)
    this.#count(this.#first.length)
  }

  close(): void {
    if (this.#closed) return
    this.#closed = true
    this.#first = undefined
    this.#list.close()
    this.#hold.set(0)
    this.#endExceeding()
  }

  /**
   * Each chunk is an array. All but the first begin with "," in place of "[", and each is sent
   * without its "]", which comes once, at the end.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void, undefined> {
    let begun = false
    let chunk = this.#first
    this.#first = undefined
    while (chunk !== undefined) {
      const { length }: Buffer = chunk
      if (length > EMPTY_LIST_BYTES) {
        if (begun) chunk[0] = COMMA
        begun = true
        for (let at = 0; at < length - 1; at += PIECE_MAX_BYTES)
          yield pieceOf(chunk, at, length - 1)
      }
      // Released before the wait for the next one, which may be long.
      chunk = undefined
      chunk = await this.#next(length)
    }
    yield Buffer.from(begun ? ']' : '[]')
  }

  async #next(sentBytes: number): Promise<Buffer | undefined> {
    // Node keeps the last piece that it wrote until it writes another.
    const { owner, options } = this.#call
    const keptBytes = Math.min(sentBytes, PIECE_MAX_BYTES)
    this.#count(keptBytes)
    while (!this.#closed) {
      const made = await options.queue.run(owner, () => this.#makeNext(keptBytes))
      if (made !== 'no room') return made
      await sleep(ROOM_CHECK_MS)
    }
    return undefined
  }

  /**
   * Looks for room, makes a chunk and counts it in one tick, so that two lists cannot take the same
   * room. A chunk that comes later, as over etcd, is counted when it comes.
   */
  #makeNext(keptBytes: number): Promise<Buffer | undefined> | Buffer | undefined | 'no room' {
    if (this.#closed) return undefined
    // Its own bytes are released for the check: it may always replace them.
    this.#hold.set(0)
    this.#endExceeding()
    const { owner, options } = this.#call
    if (!options.answers.hasRoom(owner)) {
      this.#exceeds = options.answers.beginExceeding(owner)
      if (!this.#exceeds) {
        this.#count(keptBytes)
        return 'no room'
      }
    }
    const json = this.#list.next()
    return json instanceof Promise ? json.then((made) => this.#made(made)) : this.#made(json)
  }

  #made(json: string | undefined): Buffer | undefined {
    const chunk = json === undefined ? undefined : Buffer.from(json)
    this.#count(chunk?.length ?? 0)
    return chunk
  }

  #count(chunkBytes: number): void {
    if (this.#closed) return
    const bytes = chunkBytes + (this.#list.heldBytes ?? 0)
    this.#hold.set(bytes)
    // A list that holds one piece or less exceeds nothing.
    if (bytes <= PIECE_MAX_BYTES) this.#endExceeding()
  }

  #endExceeding(): void {
    const { owner, options } = this.#call
    if (this.#exceeds) options.answers.endExceeding(owner)
    this.#exceeds = false
  }
}

/**
 * The bytes from `at` on, up to `end`. A part of a chunk is copied: Node keeps the last piece in
 * memory, and a piece that is not a copy would keep its whole chunk.
 */
function pieceOf(chunk: Buffer, at: number, end: number): Buffer {
  if (end <= PIECE_MAX_BYTES) return chunk.subarray(0, end)
  return Buffer.from(chunk.subarray(at, Math.min(at + PIECE_MAX_BYTES, end)))
}
