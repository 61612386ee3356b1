import type { File, Files } from './files.ts'
import { checkHeld, LockLost, type LockPlace } from './lock.ts'

/** Creates of this time may be lost. A check for each write would slow down every create. */
const CHECK_EVERY_MS = 1000

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
export function lockedFiles(files: Files, place: LockPlace | undefined): Files {
  if (!place) return files
  let lost: LockLost | undefined
  const check = async (): Promise<void> => {
    if (lost) throw lost
    await checkHeld(place).catch((error: unknown) => {
      if (error instanceof LockLost) lost = error
      throw error
    })
  }
  const checkAfter = async <T>(reading: Promise<T>): Promise<T> => {
    try {
      return await reading
    } finally {
      await check()
    }
  }
  return {
    makeDirectory: (path) => files.makeDirectory(path),
    list: (directory) => checkAfter(files.list(directory)),
    read: (path, roomBytes) => checkAfter(files.read(path, roomBytes)),
    readStart: (path, lengthBytes) => checkAfter(files.readStart(path, lengthBytes)),
    async open(path, mode) {
      await check()
      const file = await files.open(path, mode)
      return mode === 'durable' ? checkedFile(file, check) : file
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
}

function checkedFile(file: File, check: () => Promise<void>): File {
  // The first write checks too: the path may have changed while the file was opened.
  let checkedAtMs = -Infinity
  return {
    async write(bytes, at) {
      if (performance.now() - checkedAtMs >= CHECK_EVERY_MS) {
        await check()
        checkedAtMs = performance.now()
      }
      return file.write(bytes, at)
    },
    sync: () => file.sync(),
    truncate: (lengthBytes) => file.truncate(lengthBytes),
    close: () => file.close(),
  }
}
