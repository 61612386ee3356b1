import { reasonOf } from '../../errors.ts'
import type { NewPlant } from '../../plants/plant.ts'
import {
  type Created,
  type PlantList,
  type PlantRange,
  type PlantStore,
  PlantTooLarge,
  StoreFull,
  StoreUnavailable,
} from '../../plants/store.ts'
import { type ClientOptions, EtcdClient } from './client.ts'
import { type EtcdLog, Failures } from './failures.ts'
import { EtcdRefusal } from './gateway.ts'
import { EMPTY, openList, RANGE_PATH } from './listing.ts'
import { type EtcdTls, outOfDate } from './tls.ts'
import {
  compareMessage,
  createMessage,
  keyMessage,
  type Outcome,
  plantKey,
  plantRange,
  plantValue,
  probeMessage,
  readOutcome,
  readPage,
} from './wire.ts'

export interface EtcdConfig extends ClientOptions {
  /** What the keys of all plants begin with; ends in "/". */
  readonly prefix: string
}

const TXN_PATH = '/v3/kv/txn'
const INT64_MAX = 2n ** 63n - 1n
/** How often readiness is looked at. */
const PROBE_EVERY_MS = 1000
const NO_SPACE = /database space exceeded/
/** Above etcd's --max-request-bytes, and above half a MiB more. */
const TOO_LARGE = /request is too large|message larger than max/
const DENIED = /permission denied/
const NOT_KEPT = 'a plant could not be kept'

/**
 * Plants in an etcd cluster, which any number of instances share. A create is one transaction, a
 * list is read page by page with linearizable reads, and the process keeps nothing.
 */
export class EtcdStore implements PlantStore {
  readonly #client: EtcdClient
  readonly #prefix: string
  readonly #tls: EtcdTls
  readonly #log: EtcdLog
  readonly #failures: Failures
  readonly #underWay = new Set<Promise<Created>>()
  #unavailableReason: string | undefined
  #full = false
  #timer: NodeJS.Timeout | undefined
  #closed: Promise<void> | undefined

  private constructor(config: EtcdConfig, log: EtcdLog) {
    this.#client = new EtcdClient(config)
    this.#prefix = config.prefix
    this.#tls = config.tls
    this.#log = log
    this.#failures = new Failures(log)
  }

  /**
   * Resolves once it is known whether etcd answers; where it does not, the store says so and waits
   * for it.
   */
  static async open(config: EtcdConfig, log: EtcdLog): Promise<EtcdStore> {
    const store = new EtcdStore(config, log)
    await store.#probe()
    return store
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    return this.#keep(this.#create(owner, plant))
  }

  /**
   * Never at once: what HTTP remembers of a list that came at once, another instance would not know
   * to forget.
   */
  async list(owner: string, { after, limit }: PlantRange): Promise<PlantList> {
    this.#refuseClosed()
    // To etcd a limit of 0 means all.
    if (limit === 0 || after === INT64_MAX) return EMPTY
    const range = plantRange(this.#prefix, owner, after)
    const fail = (error: unknown): never => this.#unavailable('plants could not be read', error)
    return openList(this.#client, owner, range, limit ?? Infinity, fail).catch(fail)
  }

  unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  close(): Promise<void> {
    return (this.#closed ??= this.#close())
  }

  async #close(): Promise<void> {
    clearTimeout(this.#timer)
    // Creates end by their own time. Lists are ended: they may be as long as they like.
    await Promise.allSettled(this.#underWay)
    this.#client.close()
  }

  async #create(owner: string, plant: NewPlant): Promise<Created> {
    this.#refuseClosed()
    const key = plantKey(this.#prefix, owner, plant.id)
    let put: Outcome
    try {
      put = await this.#transact(owner, () => createMessage(key, plant))
    } catch (error) {
      return this.#explain(owner, key, plant, error)
    }
    if (put.succeeded) {
      this.#setFull(false)
      return 'stored'
    }
    try {
      const same = await this.#transact(owner, () => compareMessage(key, plant))
      if (same.succeeded) return 'stored'
      if (same.count > 0) return 'conflict'
      throw new Error('etcd neither put a plant nor has one')
    } catch (error) {
      return this.#unavailable(NOT_KEPT, error)
    }
  }

  async #transact(owner: string | undefined, message: () => unknown): Promise<Outcome> {
    return readOutcome((await this.#client.call({ path: TXN_PATH, message, owner })).body)
  }

  /** What became of a create that etcd refused or did not answer. */
  async #explain(owner: string, key: Buffer, plant: NewPlant, error: unknown): Promise<Created> {
    if (error instanceof EtcdRefusal) {
      if (error.first && TOO_LARGE.test(error.message)) throw new PlantTooLarge()
      if (NO_SPACE.test(error.message)) {
        this.#setFull(true)
        const found = await this.#find(owner, key, plant)
        if (found) return found
        // An attempt that was not answered may find room yet.
        if (error.first) throw new StoreFull()
      }
    }
    return this.#unavailable(NOT_KEPT, error)
  }

  /** A full cluster refuses a create before it looks whether the plant is there already. */
  async #find(owner: string, key: Buffer, plant: NewPlant): Promise<Created | undefined> {
    try {
      const call = { path: RANGE_PATH, message: () => keyMessage(key), owner }
      const [entry] = readPage((await this.#client.call(call)).body).entries
      return entry && (entry.value === plantValue(plant) ? 'stored' : 'conflict')
    } catch (error) {
      return this.#unavailable(NOT_KEPT, error)
    }
  }

  #refuseClosed(): void {
    if (this.#closed) throw new StoreUnavailable('the store is closed')
  }

  #keep(work: Promise<Created>): Promise<Created> {
    const kept = work.finally(() => this.#underWay.delete(kept))
    this.#underWay.add(kept)
    return kept
  }

  #setFull(full: boolean): void {
    if (this.#full === full) return
    this.#full = full
    if (full)
      this.#log(
        'error',
        'etcd has no space left: no new plant can be kept, and reading goes on',
        {},
      )
    else this.#log('info', 'etcd has space again', {})
  }

  /** etcd's own /health is good without a majority and knows nothing of rights. Never rejects. */
  async #probe(): Promise<void> {
    const before = this.#unavailableReason
    try {
      await this.#ask(Buffer.from(this.#prefix))
      this.#unavailableReason = undefined
      if (before !== undefined) this.#log('info', 'etcd is ready again', {})
    } catch (error) {
      this.#unavailableReason = [this.#reasonOf(error), outOfDate(this.#tls)]
        .filter(Boolean)
        .join('; ')
      if (before !== this.#unavailableReason) {
        this.#log('error', 'etcd is not ready', { reason: this.#unavailableReason })
      }
    }
    if (this.#closed) return
    this.#timer = setTimeout(() => void this.#probe(), PROBE_EVERY_MS).unref()
  }

  async #ask(key: Buffer): Promise<void> {
    try {
      await this.#transact(undefined, () => probeMessage(key))
    } catch (error) {
      if (!(error instanceof EtcdRefusal && NO_SPACE.test(error.message))) throw error
      // Releases before 3.4.20 and 3.5.7 refuse a delete too where their quota is used up.
      const message = (): unknown => keyMessage(key)
      readPage((await this.#client.call({ path: RANGE_PATH, message, owner: undefined })).body)
    }
  }

  /** @throws StoreUnavailable for any error. Its cause is in the log. */
  #unavailable(message: string, error: unknown): never {
    const reason = this.#reasonOf(error)
    if (!this.#closed) this.#failures.report(message, reason)
    throw error instanceof StoreUnavailable ? error : new StoreUnavailable(reason, { cause: error })
  }

  #reasonOf(error: unknown): string {
    const reason = reasonOf(error)
    if (!DENIED.test(reason)) return reason
    return `${reason}; the user of etcd needs readwrite on ${this.#prefix}`
  }
}
