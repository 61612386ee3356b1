/* Notices that another program changed the snapshot while the store is open. */

import { reasonOf } from '../../errors.ts'
import type { Log } from '../../telemetry/log.ts'
import { PageFile } from './page-file.ts'
import type { Recovery } from './recovery.ts'
import { shaOf, SNAPSHOT } from './snapshot.ts'
import { CHECK_EVERY_MS, type StoreDirectory } from './store-directory.ts'

const CHANGED = 'was changed by another program: no plant is created, so that none is lost'
const CURE = 'lists go on, and a stop writes a new one: end that program, and restart the service'

/**
 * Whether the directory and its snapshot are still this store's. While they are not, memory alone
 * has all plants: no plant is created, and no snapshot is made of that file.
 */
export class SnapshotWatch {
  readonly #directory: StoreDirectory
  readonly #log: Log
  /** The SHA-256 of the snapshot that is in place, and of one that may be; none in a new store. */
  #own: readonly string[]
  /** What the file system says of the file that was last found to be this store's. */
  #fingerprint: string
  #reason: string | undefined
  #checkedAtMs = -Infinity
  #busy: Promise<unknown> = Promise.resolve()

  constructor(directory: StoreDirectory, log: Log, { snapshot, fingerprint }: Recovery) {
    this.#directory = directory
    this.#log = log
    this.#own = snapshot ? [snapshot.sha] : []
    this.#fingerprint = fingerprint
  }

  /** Why no plant may be created, as the last check found. Begins the next check if it is due. */
  get reason(): string | undefined {
    void this.check()
    return this.#reason
  }

  /** Checks, unless the last check was within this time. Returns why no plant may be created. */
  async check(withinMs = CHECK_EVERY_MS): Promise<string | undefined> {
    // As in `openDurable`, a store without a lock is not checked.
    if (!this.#directory.lock || performance.now() - this.#checkedAtMs < withinMs)
      return this.#reason
    this.#checkedAtMs = performance.now()
    return this.#exclusively(async () => {
      const before = this.#reason
      const reason = (this.#reason = await this.#look().catch((error: unknown) => reasonOf(error)))
      if (reason === before) return reason
      if (reason === undefined) this.#log.info('the snapshot is as it was left again')
      else this.#log.error('plants cannot be written', { error: reason })
      return reason
    })
  }

  /** Puts another snapshot in place. After a failure, the old one or the new one is there. */
  replace(sha: string, putInPlace: () => Promise<void>): Promise<void> {
    return this.#exclusively(async () => {
      this.#own = [...this.#own, sha]
      await putInPlace()
      this.#own = [sha]
      this.#reason = undefined
      this.#fingerprint = await this.#directory.fingerprintOf(SNAPSHOT)
    })
  }

  async #look(): Promise<string | undefined> {
    const directory = this.#directory
    await directory.checkLock()
    if (this.#own.length === 0) return undefined
    const fingerprint = await directory.fingerprintOf(SNAPSHOT)
    if (fingerprint === this.#fingerprint) return undefined
    const sha = fingerprint === '' ? undefined : await this.#sha()
    if (sha === undefined || !this.#own.includes(sha))
      return `${directory.pathOf(SNAPSHOT)} ${CHANGED}; ${CURE}`
    // `touch`, or a copy that was put back, is no change.
    this.#fingerprint = fingerprint
    return undefined
  }

  async #sha(): Promise<string | undefined> {
    const file = await this.#directory.openExisting(SNAPSHOT)
    const pages = new PageFile(SNAPSHOT, file, await file.lengthBytes())
    return shaOf(pages).finally(file.close)
  }

  /** A check never sees a snapshot that is about to be replaced. */
  #exclusively<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#busy.then(work)
    this.#busy = result.catch(() => {})
    return result
  }
}
