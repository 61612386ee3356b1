/** Plants in an etcd cluster. */
import { HttpError, reasonOf } from '../../errors.ts'
import { Limiter } from '../../limits/limiter.ts'
import type { NewPlant } from '../../plants/plant.ts'
import type { Created, PlantList, PlantStore, RangeOf } from '../../plants/store.ts'
import { PlantTooLarge, StoreFull, StoreUnavailable } from '../../plants/store.ts'
import type { Log } from '../../telemetry/log.ts'
import { EtcdClient, type EtcdConfig } from './client.ts'
import { DENIED, isRefusal } from './gateway.ts'
import { readChunks } from './chunks.ts'
import { type Put, SharedPuts } from './puts.ts'
import { SharedRanges, type TimedQuery } from './ranges.ts'
import * as wire from './wire.ts'

/** Enough for etcd to write many calls with one sync, few enough to bound their answers' memory. */
const RUNNING_MAX = 64
/** Of all owners: about one second of work for etcd. */
const WAITING_MAX = 4096
/** A call that ends by itself in this time can say why. */
const GRACE_MS = 100
const PROBE_EVERY_MS = 1000
const LOGIN_REFUSED = /authentication failed|user name is empty/
const USER = 'PLANTS_ETCD_USERNAME and PLANTS_ETCD_PASSWORD_FILE, or the option etcdUsername'
const WAITED = 'etcd did not answer in time: too many calls wait for it'
const NO_SPACE = /database space exceeded/
/** Up to half a MiB above etcd's --max-request-bytes, and above that. */
const TOO_LARGE = /request is too large|message larger than max/

/**
 * Plants in an etcd cluster, which any number of instances share. A create is one transaction,
 * alone or with others. A list is read range by range, with linearizable reads. Nothing is cached.
 */
export class EtcdStore implements PlantStore {
  readonly #client: EtcdClient
  readonly #config: EtcdConfig
  readonly #log: Log
  /** Of creates, and of the ranges of lists. */
  readonly #calls = new Limiter('calls of etcd', RUNNING_MAX, WAITING_MAX)
  readonly #puts = new SharedPuts((puts) =>
    // Older creates of a transaction have their answers before.
    this.#transact(wire.putRequest(puts), Math.max(...puts.map((put) => put.deadline))),
  )
  readonly #ranges = new SharedRanges((queries) => this.#readRanges(queries))
  /** Running creates, for `close`. */
  readonly #creates = new Set<Promise<Created>>()
  #unavailableReason: string | undefined
  #probeTimer: NodeJS.Timeout | undefined
  #closed: Promise<void> | undefined

  private constructor(config: EtcdConfig, log: Log) {
    this.#client = new EtcdClient(config)
    this.#config = config
    this.#log = log
  }

  /** Resolves after the first probe. If etcd does not answer, the store is open but unavailable. */
  static async open(config: EtcdConfig, log: Log): Promise<EtcdStore> {
    const store = new EtcdStore(config, log)
    await store.#probe()
    return store
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    const created: Promise<Created> = this.#inTurn(owner, (deadline) => {
      const key = wire.plantKey(this.#config.prefix, owner, plant.id)
      return this.#create({ key, value: wire.plantValue(plant), deadline })
    })
      .catch((error: unknown) => Promise.reject(this.#told(error)))
      .finally(() => this.#creates.delete(created))
    this.#creates.add(created)
    return created
  }

  /** Always promises: HTTP caches only chunks returned at once, and could not invalidate these. */
  list(owner: string, { after, limit = Infinity }: RangeOf<'after' | 'limit'>): PlantList {
    const read = (query: wire.RangeQuery, isFirst: boolean) =>
      this.#inTurn(owner, (deadline) => this.#ranges.read({ ...query, deadline }, isFirst))
    const list = readChunks(read, wire.plantRange(this.#config.prefix, owner, after), limit)
    return { next: () => list.next().catch((error: unknown) => Promise.reject(this.#told(error))) }
  }

  unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  /** Waits for creates, which end within the time of a call. Ends lists, which may take longer. */
  close(): Promise<void> {
    clearTimeout(this.#probeTimer)
    return (this.#closed ??= Promise.allSettled(this.#creates).then(() => this.#client.close()))
  }

  /** Runs work in its owner's turn. It has an answer by the deadline, even while it waits. */
  async #inTurn<T>(owner: string, work: (deadline: number) => Promise<T>): Promise<T> {
    if (this.#closed) throw new StoreUnavailable('the store is closed')
    const deadline = this.#client.deadline()
    const turn = this.#calls.run(owner, () => {
      if (performance.now() > deadline) throw new StoreUnavailable(WAITED)
      return work(deadline)
    })
    return new Promise((resolve, reject) => {
      const end = (): void => reject(new StoreUnavailable(WAITED))
      const timer = setTimeout(end, deadline + GRACE_MS - performance.now())
      turn.then(resolve, reject).finally(() => clearTimeout(timer))
    })
  }

  async #create(put: Put): Promise<Created> {
    try {
      if ((await this.#puts.put(put)) === 'stored') return 'stored'
      const { succeeded, counts } = await this.#transact(wire.compareRequest(put), put.deadline)
      if (!counts[0]) throw new Error('etcd neither put a plant nor has one')
      return succeeded ? 'stored' : 'conflict'
    } catch (error) {
      if (isRefusal(error, TOO_LARGE)) throw new PlantTooLarge()
      if (!isRefusal(error, NO_SPACE)) throw error
      // A full cluster refuses a put before it looks for the key.
      const found = wire.readRange(await this.#client.call(wire.keyRequest(put.key), put.deadline))
      const [entry] = found.entries
      if (entry) return entry.value === put.value ? 'stored' : 'conflict'
      throw new StoreFull()
    }
  }

  async #readRanges(queries: readonly TimedQuery[]): Promise<readonly wire.RangePart[]> {
    const deadline = Math.max(...queries.map((query) => query.deadline))
    return wire.readRanges(await this.#client.call(wire.rangesRequest(queries), deadline))
  }

  async #transact(request: wire.EtcdRequest, deadline?: number): Promise<wire.Outcome> {
    return wire.readOutcome(await this.#client.call(request, deadline))
  }

  /** Sets the unavailable reason, and schedules the next probe. Never rejects. */
  async #probe(): Promise<void> {
    const reason = await this.#reasonNow()
    if (reason !== this.#unavailableReason) {
      this.#unavailableReason = reason
      if (reason === undefined) this.#log.info('etcd is ready again')
      else this.#log.error('etcd is not ready', { reason })
    }
    if (this.#closed) return
    this.#probeTimer = setTimeout(() => void this.#probe(), PROBE_EVERY_MS).unref()
  }

  /** etcd's own /health is not enough: it fails in a full cluster, and ignores the rights. */
  async #reasonNow(): Promise<string | undefined> {
    const key = wire.base64(this.#config.prefix)
    // etcd before 3.4.20 and 3.5.7 refuses a delete too if the quota is used up.
    const readIfFull = async (error: unknown): Promise<void> => {
      if (!isRefusal(error, NO_SPACE)) throw error
      wire.readRange(await this.#client.call(wire.keyRequest(key)))
    }
    try {
      await this.#transact(wire.probeRequest(key)).catch(readIfFull)
      return undefined
    } catch (error) {
      return this.#reasonOf(error)
    }
  }

  /** The error for a caller: StoreUnavailable in place of one that `PlantStore` does not name. */
  #told(error: unknown): unknown {
    const isForCaller = [PlantTooLarge, StoreFull, StoreUnavailable, HttpError].some(
      (kind) => error instanceof kind,
    )
    return isForCaller ? error : new StoreUnavailable(this.#reasonOf(error), { cause: error })
  }

  #reasonOf(error: unknown): string {
    const reason = reasonOf(error)
    if (isRefusal(error, LOGIN_REFUSED)) return `${reason}; look at ${USER}`
    if (!isRefusal(error, DENIED)) return reason
    return `${reason}; the user of etcd needs readwrite on ${this.#config.prefix}`
  }
}
