/** Plants in an etcd cluster. */
import { reasonOf } from '../../errors.ts'
import { Overloaded } from '../../limits/budget.ts'
import { Limiter } from '../../limits/limiter.ts'
import type { NewPlant } from '../../plants/plant.ts'
import type { Created, PlantList, PlantRange, PlantStore } from '../../plants/store.ts'
import { checkSize, PlantTooLarge, StoreFull, StoreUnavailable } from '../../plants/store.ts'
import type { Log } from '../../telemetry/log.ts'
import { EtcdClient, type EtcdConfig } from './client.ts'
import { DENIED, isRefusal } from './gateway.ts'
import { type Put, sharedPuts } from './puts.ts'
import { readChunks, sharedRanges } from './ranges.ts'
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
/** The errors that `PlantStore` names, and the one of a `Limiter`. */
const FOR_CALLERS = [PlantTooLarge, StoreFull, StoreUnavailable, Overloaded]

/**
 * Plants in an etcd cluster, which any number of instances share. A create is one transaction,
 * alone or with others. A list is read range by range, with linearizable reads. Nothing is cached.
 */
export class EtcdStore implements PlantStore {
  readonly isShared = true
  readonly #client: EtcdClient
  readonly #prefix: string
  /** Of creates, and of the ranges of lists. */
  readonly #calls = new Limiter('calls of etcd', RUNNING_MAX, WAITING_MAX)
  readonly #put = sharedPuts((puts) => this.#call(wire.putRequest(puts), ...puts))
  readonly #read = sharedRanges((queries) => this.#call(wire.rangesRequest(queries), ...queries))
  /** Running creates, for `close`. */
  readonly #creates = new Set<Promise<Created>>()
  #unavailableReason: string | undefined
  #closed: Promise<void> | undefined

  private constructor(config: EtcdConfig) {
    this.#client = new EtcdClient(config)
    this.#prefix = config.prefix
  }

  /** Resolves after the first probe. If etcd does not answer, the store is open but unavailable. */
  static async open(config: EtcdConfig, log: Log): Promise<EtcdStore> {
    const store = new EtcdStore(config)
    await store.#probe(log)
    return store
  }

  create(owner: string, plant: NewPlant): Promise<Created> {
    const created: Promise<Created> = this.#inTurn(owner, (deadline) => {
      checkSize(plant)
      const key = wire.plantKey(this.#prefix, owner, plant.id)
      return this.#create({ key, value: wire.plantValue(plant), deadline })
    })
      .catch(this.#fail)
      .finally(() => this.#creates.delete(created))
    this.#creates.add(created)
    return created
  }

  list(owner: string, { after, limit = Infinity }: PlantRange): PlantList {
    const read = (query: wire.RangeQuery, isFirst: boolean) =>
      this.#inTurn(owner, (deadline) => this.#read({ ...query, deadline }, isFirst))
    const list = readChunks(read, wire.plantRange(this.#prefix, owner, after), limit)
    return { next: () => list.next().catch(this.#fail) }
  }

  unavailableReason(): string | undefined {
    return this.#unavailableReason
  }

  /** Waits for creates, which end within the time of a call. Ends lists, which may take longer. */
  close(): Promise<void> {
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
      if ((await this.#put(put)) === 'stored') return 'stored'
      const answer = await this.#call(wire.compareRequest(put), put)
      const [counted] = wire.partsOf(answer, 1)
      if (!Number(counted?.count)) throw new Error('etcd neither put a plant nor has one')
      return answer.succeeded ? 'stored' : 'conflict'
    } catch (error) {
      if (isRefusal(error, TOO_LARGE)) throw new PlantTooLarge()
      const entry = await this.#readIfFull(error, put)
      if (!entry) throw new StoreFull()
      return entry.value === put.value ? 'stored' : 'conflict'
    }
  }

  /** A full cluster refuses a put before it looks for the key. @throws any other error */
  async #readIfFull(error: unknown, caller: Pick<Put, 'key' | 'deadline'>) {
    if (!isRefusal(error, NO_SPACE)) throw error
    const { kvs } = await this.#call(wire.keyRequest(caller.key), caller)
    return kvs?.[0]
  }

  /** Until the last caller's deadline: the others have their answers before. */
  #call(request: wire.EtcdRequest, ...callers: readonly Pick<Put, 'deadline'>[]) {
    const deadline = Math.max(...callers.map((caller) => caller.deadline))
    return this.#client.call(request, deadline)
  }

  /**
   * Sets the unavailable reason, and schedules the next probe. Never rejects. etcd's own /health is
   * not enough: it fails in a full cluster, and ignores the rights.
   */
  async #probe(log: Log): Promise<void> {
    if (this.#closed) return
    const probe = { key: wire.base64(this.#prefix), deadline: this.#client.deadline() }
    const reason = await this.#call(wire.probeRequest(probe.key), probe)
      // etcd before 3.4.20 and 3.5.7 refuses a delete too if the quota is used up.
      .catch((error: unknown) => this.#readIfFull(error, probe))
      .then(() => undefined)
      .catch((error: unknown) => this.#reasonOf(error))
    const isNew = reason !== this.#unavailableReason
    this.#unavailableReason = reason
    if (isNew && reason === undefined) log.info('etcd is ready again')
    if (isNew && reason !== undefined) log.error('etcd is not ready', { reason })
    setTimeout(() => void this.#probe(log), PROBE_EVERY_MS).unref()
  }

  /** Throws StoreUnavailable in place of an error that `PlantStore` does not name. */
  readonly #fail = (error: unknown): never => {
    if (FOR_CALLERS.some((kind) => error instanceof kind)) throw error
    throw new StoreUnavailable(this.#reasonOf(error), { cause: error })
  }

  #reasonOf(error: unknown): string {
    const reason = reasonOf(error)
    if (isRefusal(error, LOGIN_REFUSED)) return `${reason}; look at ${USER}`
    if (!isRefusal(error, DENIED)) return reason
    return `${reason}; the user of etcd needs readwrite on ${this.#prefix}`
  }
}
