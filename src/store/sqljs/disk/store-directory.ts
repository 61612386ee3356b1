/* The files of the store's directory, each by its name. */

import { randomBytes } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { errorCodeOf } from '../../../errors.ts'
import type { File, Files } from './files.ts'
import { identityOf, isHeld, lockLost, type LockPlace } from './lock.ts'
import { shaOf, SNAPSHOT } from './snapshot.ts'

/**
 * If another program takes the directory away, creates of this time may be lost. A check for each
 * write would slow down every create.
 */
export const CHECK_EVERY_MS = 1000
/** The ending of a file that is not whole yet. A start removes those that a crash left. */
export const TEMPORARY = '.tmp'

/**
 * A name for a file until it is whole. Only one writer has it: an abandoned thread, or a process
 * whose directory was replaced, never writes to another's file or removes it.
 */
export function temporaryName(name: string): string {
  return `${name}.${randomBytes(8).toString('hex')}${TEMPORARY}`
}

const CHANGED = 'was changed by another program: no plant is created, so that none is lost'
const CURE = 'lists go on, and a stop writes a new one: end that program, and restart the service'

/**
 * Before a file is created, renamed or removed, it checks that the directory is still the one that
 * was locked. Once it is not, all of these calls fail, even if the lock comes back: another process
 * may have held the directory meanwhile. `check` also looks at the open journal and the snapshot.
 */
export class StoreDirectory {
  readonly path: string
  readonly lock: LockPlace | undefined
  readonly #files: Files
  #isLost = false
  #checkedAtMs = -Infinity
  /** The journal that is written to, and its device and inode. */
  #journal: { readonly name: string; readonly identity: string | undefined } | undefined
  /** The SHA-256 of each snapshot that may be in place; without one, any file may be. */
  #snapshots: readonly string[] = []
  /** What the file system says of the file that was last found to be one of them. */
  #fingerprint = ''

  constructor(files: Files, path: string, lock?: LockPlace) {
    this.path = path
    this.#files = files
    this.lock = lock
  }

  pathOf(name: string): string {
    return `${this.path}/${name}`
  }

  list(): Promise<readonly string[]> {
    return this.#files.list(this.path)
  }

  /** Opens a file to read it. */
  openExisting(name: string): Promise<File> {
    return this.#files.open(this.pathOf(name), 'existing')
  }

  /** Opens the journal. Each write is durable when it returns. */
  async openDurable(name: string): Promise<File> {
    await this.checkLock()
    const identity = this.lock && (await identityOf(this.path, name))
    const file = await this.#files.open(this.pathOf(name), 'durable')
    this.#journal = { name, identity }
    // The path may have changed while the file was opened: the next check is due.
    this.#checkedAtMs = -Infinity
    return file
  }

  /** What changes if another program writes to a file; empty if it is gone, or without a lock. */
  async fingerprintOf(name: string): Promise<string> {
    if (!this.lock) return ''
    const found = await stat(this.pathOf(name), { bigint: true }).catch((error: unknown) => {
      if (errorCodeOf(error) !== 'ENOENT') throw error
    })
    return found ? `${found.dev}:${found.ino} ${found.size} ${found.mtimeNs}` : ''
  }

  /** From now on this snapshot must be in place; without one, any may be. */
  watchSnapshot(sha?: string, fingerprint = ''): void {
    this.#snapshots = sha === undefined ? [] : [sha]
    this.#fingerprint = fingerprint
  }

  /** Whether no other program has changed the snapshot. `touch`, or a copy, is no change. */
  async #hasOwnSnapshot(): Promise<boolean> {
    const own = this.#snapshots
    if (own.length === 0) return true
    const fingerprint = await this.fingerprintOf(SNAPSHOT)
    if (fingerprint === this.#fingerprint) return true
    if (fingerprint === '') return false
    const file = await this.openExisting(SNAPSHOT)
    const sha = await shaOf(SNAPSHOT, file).finally(file.close)
    // A compaction has put another one in place.
    if (own !== this.#snapshots) return true
    if (sha === undefined || !own.includes(sha)) return false
    this.#fingerprint = fingerprint
    return true
  }

  /** Puts another snapshot in place. After a failure, the old one or the new one is there. */
  async replaceSnapshot(temporary: string, sha: string): Promise<void> {
    this.#snapshots = [...this.#snapshots, sha]
    // A rename keeps it. After the rename, another program's file may have the name.
    const fingerprint = await this.fingerprintOf(temporary)
    await this.renameIntoPlace(temporary, SNAPSHOT)
    this.watchSnapshot(sha, fingerprint)
  }

  /** It is durable: of files that are removed in order, a crash leaves the last ones. */
  async remove(name: string): Promise<void> {
    await this.checkLock()
    await this.#files.remove(this.pathOf(name))
    await this.sync()
  }

  /** Makes creations, renames and removals durable. */
  sync(): Promise<void> {
    return this.#files.syncDirectory(this.path)
  }

  /**
   * Checks, unless the last check was within this time, that directory, lock, open journal and
   * snapshot are as this store has left them. For the writer of the journal, which must know.
   * @throws Error that says what is not, or if that cannot be known.
   */
  async check(withinMs = 0): Promise<void> {
    const isRecent = performance.now() - this.#checkedAtMs < withinMs
    if (!this.lock || (isRecent && !this.#isLost)) return
    await this.checkLock()
    const { name, identity } = this.#journal ?? {}
    if (name !== undefined && (await identityOf(this.path, name)) !== identity) {
      // The file in its place will be looked at.
      this.#journal = undefined
      throw new Error(`${name} was replaced`)
    }
    if (!(await this.#hasOwnSnapshot()))
      throw new Error(`${this.pathOf(SNAPSHOT)} ${CHANGED}; ${CURE}`)
    this.#checkedAtMs = performance.now()
  }

  /** @throws Error if the lock is lost, or if that cannot be known. */
  async checkLock(): Promise<void> {
    if (!this.lock) return
    if (!(await isHeld(this.lock))) this.#isLost = true
    if (this.#isLost) throw lockLost(this.lock)
  }

  /**
   * The first half of writing a whole file: it is durable under its temporary name when this
   * resolves. A crash leaves the old file or the new one, never a part. An error leaves the old one
   * as it was.
   */
  async writeTemporary<T>(temporary: string, write: (file: File) => Promise<T>): Promise<T> {
    await this.checkLock()
    const file = await this.#files.open(this.pathOf(temporary), 'temporary')
    const synced = write(file).then((result) => file.sync().then(() => result))
    return this.orRemove(temporary, () => synced.finally(file.close))
  }

  /**
   * The second half: the rename, which is durable only after the directory is synced. After an
   * error, either file may have the name.
   */
  async renameIntoPlace(temporary: string, name: string): Promise<void> {
    await this.checkLock()
    const [from, to] = [this.pathOf(temporary), this.pathOf(name)]
    await this.orRemove(temporary, () => this.#files.rename(from, to))
    await this.sync()
  }

  /**
   * If the work fails, removes the file: a full disk must not stay full because of it. If that
   * fails too, the next start removes it.
   */
  orRemove<T>(temporary: string, work: () => Promise<T>): Promise<T> {
    return work().catch(async (error: unknown) => {
      await this.remove(temporary).catch(() => {})
      throw error
    })
  }
}
