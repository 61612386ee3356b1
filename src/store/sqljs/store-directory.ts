import type { File, Files, Mode } from './files.ts'
import { checkHeld, LockLost, type LockPlace, withPath } from './lock.ts'

/** Creates within this time may be lost. A check for each write would slow down every create. */
const CHECK_EVERY_MS = 1000
/** The ending of a file that is not whole yet. A start removes those that a crash left. */
export const TEMPORARY = '.tmp'

/**
 * The files of the store's directory, by name. Where the lock has opened the directory, each path
 * begins with what was opened: a renamed directory or a changed link leads nowhere else. Messages
 * have the operator's path.
 *
 * The lock is checked before a file is opened, renamed or removed, and once a second while the
 * journal is written. If the operator's path leads to another lock, or to none, another process may
 * hold the directory, and the next start would not find what is written here. Then each of these
 * calls fails from now on, also if the lock comes back: another process may have held it meanwhile.
 */
export class StoreDirectory {
  readonly path: string
  readonly lock: LockPlace | undefined
  readonly #files: Files
  readonly #root: string
  #lost: LockLost | undefined
  #checkedAtMs = -Infinity

  constructor(files: Files, path: string, lock?: LockPlace) {
    this.path = path
    this.#files = files
    this.lock = lock
    this.#root = lock?.root ?? path
  }

  /** The path of a file, for messages. */
  pathOf(name: string): string {
    return `${this.path}/${name}`
  }

  list(): Promise<readonly string[]> {
    return this.#named(this.#files.list(this.#root))
  }

  /** A file's bytes. */
  read(name: string): Promise<Buffer> {
    return this.#named(this.#files.read(this.#at(name)))
  }

  /** Opens a file to read parts of it. */
  openExisting(name: string): Promise<File> {
    return this.#named(this.#files.open(this.#at(name), 'existing'))
  }

  /** A file's first bytes, at most `lengthBytes`. */
  readStart(name: string, lengthBytes: number): Promise<Buffer> {
    return this.#named(this.#files.readStart(this.#at(name), lengthBytes))
  }

  /** Opens the journal. Each write is durable when it returns. */
  async openDurable(name: string): Promise<File> {
    const file = await this.#open(name, 'durable')
    if (!this.lock) return file
    // The first write checks too: the path may have changed while the file was opened.
    this.#checkedAtMs = -Infinity
    const write: File['write'] = async (bytes, at) => {
      if (this.#lost || performance.now() - this.#checkedAtMs >= CHECK_EVERY_MS)
        await this.checkLock()
      return file.write(bytes, at)
    }
    return { ...file, write }
  }

  async remove(name: string): Promise<void> {
    await this.checkLock()
    await this.#named(this.#files.remove(this.#at(name)))
  }

  /** Makes creations, renames and removals durable. */
  sync(): Promise<void> {
    return this.#named(this.#files.syncDirectory(this.#root))
  }

  /** @throws LockLost if the lock is lost; any other error if that cannot be known. */
  async checkLock(): Promise<void> {
    if (this.#lost) throw this.#lost
    if (!this.lock) return
    await checkHeld(this.lock).catch((error: unknown) => {
      if (error instanceof LockLost) this.#lost = error
      throw error
    })
    this.#checkedAtMs = performance.now()
  }

  /**
   * The first half of writing a whole file: `write` writes a temporary file and syncs it. A crash
   * leaves the old file or the new one, never a part. An error leaves the old one as it was.
   */
  writeTemporary<T>(name: string, write: (file: File) => Promise<T>): Promise<T> {
    return this.#orRemove(name, async () => {
      const file = await this.#open(`${name}${TEMPORARY}`, 'temporary')
      try {
        return await write(file)
      } finally {
        await file.close()
      }
    })
  }

  /**
   * The second half: the rename, which is durable only after the directory is synced. After an
   * error, either file may have the name.
   */
  async renameIntoPlace(name: string): Promise<void> {
    await this.#orRemove(name, async () => {
      await this.checkLock()
      await this.#named(this.#files.rename(this.#at(`${name}${TEMPORARY}`), this.#at(name)))
    })
    await this.sync()
  }

  /** Removes the temporary file if `work` fails: a full disk must not stay full because of it. */
  async #orRemove<T>(name: string, work: () => Promise<T>): Promise<T> {
    try {
      return await work()
    } catch (error) {
      // If this fails too, the next start removes it.
      await this.remove(`${name}${TEMPORARY}`).catch(() => {})
      throw error
    }
  }

  async #open(name: string, mode: Mode): Promise<File> {
    await this.checkLock()
    return this.#named(this.#files.open(this.#at(name), mode))
  }

  #at(name: string): string {
    return `${this.#root}/${name}`
  }

  #named<T>(call: Promise<T>): Promise<T> {
    return call.catch((error: unknown) => {
      throw withPath(error, this.#root, this.path)
    })
  }
}
