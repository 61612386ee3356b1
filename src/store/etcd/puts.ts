/** Puts plants into etcd: what comes while a transaction runs shares the next one. */
import { setImmediate as nextTick } from 'node:timers/promises'
import { EtcdRefusal } from './gateway.ts'
import type { Outcome } from './wire.ts'

/** etcd's default of --max-txn-ops, which counts the operations of each branch apart. */
const SHARED_MAX = 128
/** Of a request as it is sent. etcd's default of --max-request-bytes is 1.5 MiB. */
const SHARED_MAX_BYTES = 2 ** 20
/** What a request has for each plant, besides its key three times and its value. */
const PLANT_BYTES = 160

/** A plant as etcd has it, and when its create must have an answer. */
export type Put = { readonly key: string; readonly value: string; readonly deadline: number }
/** `taken`: the key exists, with whatever value. */
type Decision = 'stored' | 'taken'
type Waiting = Put & { readonly decide: (decision: Decision | Promise<Decision>) => void }
type Transact = (puts: readonly Put[]) => Promise<Outcome>

/**
 * A transaction puts all of its plants or none. It is flat: etcd does not charge nested puts to its
 * quota.
 */
export class SharedPuts {
  readonly #transact: Transact
  readonly #waiting: Waiting[] = []
  /** Settles when no transaction runs any more. */
  #running: Promise<void> = Promise.resolve()

  /** @param transact as `putRequest` of `wire.ts` says */
  constructor(transact: Transact) {
    this.#transact = transact
  }

  /** @throws what the last transaction with this plant throws */
  put(put: Put): Promise<Decision> {
    return new Promise((decide) => {
      if (this.#waiting.push({ ...put, decide }) > 1) return
      this.#running = this.#running.then(() => nextTick()).then(() => this.#start())
    })
  }

  /** Never rejects. */
  async #start(): Promise<void> {
    const firsts = new Map<string, Waiting>()
    const repeats: Waiting[] = []
    for (const each of this.#waiting.splice(0)) {
      if (firsts.has(each.key)) repeats.push(each)
      else firsts.set(each.key, each)
    }
    await Promise.all(batchesOf(firsts.values()).map((batch) => this.#store(batch)))
    // etcd refuses a transaction that puts a key twice.
    await this.#storeAlone(repeats)
  }

  async #storeAlone(puts: readonly Waiting[]): Promise<void> {
    await Promise.all(puts.map((put) => this.#store([put])))
  }

  /** Decides each put of the batch. Never rejects. */
  async #store(batch: readonly Waiting[], isRetry = false): Promise<void> {
    try {
      const { succeeded, counts } = await this.#transact(batch)
      const free: Waiting[] = []
      for (const [at, put] of batch.entries()) {
        if (succeeded) put.decide('stored')
        else if (counts[at] === 0 && batch.length > 1) free.push(put)
        else put.decide('taken')
      }
      if (free.length === 0) return
      // Keys are never deleted, so an attempt that was left open can no longer put these.
      await (isRetry ? this.#storeAlone(free) : this.#store(free, true))
    } catch (error) {
      // One plant may be the cause.
      if (batch.length > 1 && error instanceof EtcdRefusal) await this.#storeAlone(batch)
      else for (const put of batch) put.decide(Promise.reject(error))
    }
  }
}

function batchesOf(puts: Iterable<Waiting>): readonly (readonly Waiting[])[] {
  const batches: Waiting[][] = []
  let batch: Waiting[] = []
  let bytes = Infinity
  for (const put of puts) {
    const needed = PLANT_BYTES + 3 * put.key.length + put.value.length
    bytes += needed
    if (bytes > SHARED_MAX_BYTES || batch.length === SHARED_MAX) {
      batch = []
      batches.push(batch)
      bytes = needed
    }
    batch.push(put)
  }
  return batches
}
