/* The files of the store's directory, each by its name. */

import { randomBytes } from 'node:crypto'
import { stat } from 'node:fs/promises'
import { errorCodeOf } from '../../errors.ts'
import { type File, type Files, readWhole } from './files.ts'
import { identityOf, isHeld, lockLost, type LockPlace } from './lock.ts'

/** Creates within this time may be lost. A check for each write would slow down every create. */
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

/**
 * Before a file is created, renamed or removed, and once a second while the journal is written, it
 * checks that the directory is still the one that was locked. Once it is not, all of these calls
 * fail, even if the lock comes back: another process may have held the directory meanwhile.
 * A write also checks that the open journal still has its name.
 */
export class StoreDirectory {
  readonly path: string
  readonly lock: LockPlace | undefined
  readonly #files: Files
  #isLost = false

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

  /** A file's first bytes, at most `maxBytes`; all of them without that. */
  async read(name: string, maxBytes?: number): Promise<Buffer> {
    const file = await this.openExisting(name)
    return readWhole(file, maxBytes).finally(file.close)
  }

  /** Opens a file to read parts of it. */
  openExisting(name: string): Promise<File> {
    return this.#files.open(this.pathOf(name), 'existing')
  }

  /** Opens the journal. Each write is durable when it returns. */
  async openDurable(name: string): Promise<File> {
    await this.checkLock()
    const identity = this.lock && (await identityOf(this.path, name))
    const file = await this.#files.open(this.pathOf(name), 'durable')
    // The first write checks too: the path may have changed while the file was opened.
    let checkedAtMs = -Infinity
    const write: File['write'] = async (bytes, at) => {
      if (this.#isLost || performance.now() - checkedAtMs >= CHECK_EVERY_MS) {
        await this.checkLock()
        if ((await identityOf(this.path, name)) !== identity)
          throw new Error(`${name} was replaced`)
        checkedAtMs = performance.now()
      }
      return file.write(bytes, at)
    }
    return this.lock ? { ...file, write } : file
  }

  /** What changes if another program writes to a file; empty if it is gone, or without a lock. */
  async fingerprintOf(name: string): Promise<string> {
    if (!this.lock) return ''
    const found = await stat(this.pathOf(name), { bigint: true }).catch((error: unknown) => {
      if (errorCodeOf(error) !== 'ENOENT') throw error
    })
    return found ? `${found.dev}:${found.ino} ${found.size} ${found.mtimeNs}` : ''
  }

  async remove(name: string): Promise<void> {
    await this.checkLock()
    await this.#files.remove(this.pathOf(name))
  }

  /** Makes creations, renames and removals durable. */
  sync(): Promise<void> {
    return this.#files.syncDirectory(this.path)
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
  async orRemove<T>(temporary: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      await this.remove(temporary).catch(() => {})
      throw error
    }
  }
}
