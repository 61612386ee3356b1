import type { File, Files } from './files.ts'
import { checkHeld, LockLost, type LockPlace } from './lock.ts'

/** Creates within this time may be lost. A check for each write would slow down every create. */
const CHECK_EVERY_MS = 1000

export interface LockedFiles {
  readonly files: Files
  /** @throws LockLost if the lock is lost; any other error if that cannot be known. */
  check(): Promise<void>
}

/**
 * Files of a locked directory. They check that the path still leads to that directory: before a
 * file is opened, renamed or removed, after one is read, and once a second while the journal is
 * written. If it was moved, or a link was changed, another process may hold the directory that the
 * path leads to now. Its files must stay as they are, and the next start would not find what is
 * written elsewhere.
 *
 * Once the lock is lost, every call fails, also if it comes back: another process may have held it
 * meanwhile. Only a new start sees what that one wrote.
 */
export function lockedFiles(files: Files, place: LockPlace | undefined): LockedFiles {
  if (!place) return { files, check: async () => {} }
  let lost: LockLost | undefined
  let checkedAtMs = -Infinity
  const check = async (): Promise<void> => {
    if (lost) throw lost
    await checkHeld(place).catch((error: unknown) => {
      if (error instanceof LockLost) lost = error
      throw error
    })
    checkedAtMs = performance.now()
  }
  const checkAfter = async <T>(reading: Promise<T>): Promise<T> => {
    try {
      return await reading
    } finally {
      await check()
    }
  }
  const checkedFile = (file: File): File => ({
    async write(bytes, at) {
      if (lost || performance.now() - checkedAtMs >= CHECK_EVERY_MS) await check()
      return file.write(bytes, at)
    },
    sync: () => file.sync(),
    truncate: (lengthBytes) => file.truncate(lengthBytes),
    close: () => file.close(),
  })
  const checked: Files = {
    makeDirectory: (path) => files.makeDirectory(path),
    list: (directory) => checkAfter(files.list(directory)),
    read: (path, roomBytes) => checkAfter(files.read(path, roomBytes)),
    readStart: (path, lengthBytes) => checkAfter(files.readStart(path, lengthBytes)),
    async open(path, mode) {
      await check()
      const file = await files.open(path, mode)
      // The first write checks too: the path may have changed while the file was opened.
      checkedAtMs = -Infinity
      return mode === 'durable' ? checkedFile(file) : file
    },
    async rename(from, to) {
      await check()
      return files.rename(from, to)
    },
    async remove(path) {
      await check()
      return files.remove(path)
    },
    syncDirectory: (path) => checkAfter(files.syncDirectory(path)),
  }
  return { files: checked, check }
}
