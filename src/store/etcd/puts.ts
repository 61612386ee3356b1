/** Puts plants into etcd: what comes while a transaction runs shares the next one. */
import { setImmediate as nextTick } from 'node:timers/promises'
import { EtcdRefusal } from './gateway.ts'
import { type EtcdResponse, partsOf } from './wire.ts'

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

/**
 * A transaction puts all of its plants or none. It is flat: etcd does not charge nested puts to its
 * quota. The result rejects with what the last transaction with this plant throws.
 * @param transact sends `putRequest` of `wire.ts`
 */
export function sharedPuts(transact: (puts: readonly Put[]) => Promise<EtcdResponse>) {
  const waiting: Waiting[] = []
  /** Settles when no transaction runs any more. */
  let running: Promise<void> = Promise.resolve()

  /** Decides each put that waits. Never rejects. */
  const storeWaiting = async (): Promise<void> => {
    await nextTick()
    const firsts = new Map<string, Waiting>()
    const repeats: Waiting[] = []
    for (const each of waiting.splice(0)) {
      if (firsts.has(each.key)) repeats.push(each)
      else firsts.set(each.key, each)
    }
    await Promise.all(batchesOf(firsts.values()).map((batch) => store(batch)))
    // etcd refuses a transaction that puts a key twice.
    await storeAlone(repeats)
  }

  const storeAlone = async (puts: readonly Waiting[]): Promise<void> => {
    await Promise.all(puts.map((put) => store([put])))
  }

  /** Decides each put of the batch. Never rejects. */
  const store = async (batch: readonly Waiting[], isRetry = false): Promise<void> => {
    try {
      const answer = await transact(batch)
      const counted = answer.succeeded ? [] : partsOf(answer, batch.length)
      const free: Waiting[] = []
      for (const [at, put] of batch.entries()) {
        if (answer.succeeded) put.decide('stored')
        else if (Number(counted[at]?.count) > 0 || batch.length === 1) put.decide('taken')
        else free.push(put)
      }
      if (free.length === 0) return
      // Keys are never deleted, so an attempt that was left open can no longer put these.
      await (isRetry ? storeAlone(free) : store(free, true))
    } catch (error) {
      // One plant may be the cause.
      if (batch.length > 1 && error instanceof EtcdRefusal) await storeAlone(batch)
      else for (const put of batch) put.decide(Promise.reject(error))
    }
  }

  return (put: Put): Promise<Decision> =>
    new Promise((decide) => {
      if (waiting.push({ ...put, decide }) === 1) running = running.then(storeWaiting)
    })
}

function batchesOf(puts: Iterable<Waiting>): readonly (readonly Waiting[])[] {
  const batches: Waiting[][] = []
  let bytes = 0
  for (const put of puts) {
    const needed = PLANT_BYTES + 3 * put.key.length + put.value.length
    const last = batches.at(-1)
    const fits = last && last.length < SHARED_MAX && bytes + needed <= SHARED_MAX_BYTES
    if (fits) last.push(put)
    else batches.push([put])
    bytes = fits ? bytes + needed : needed
  }
  return batches
}
