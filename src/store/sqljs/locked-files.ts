import type { File, Files } from './files.ts'
import { checkHeld, type LockPlace } from './lock.ts'

/** Creates of this time may be lost. A check for each write would slow down every create. */
const CHECK_EVERY_MS = 1000

/**
 * Files of a locked directory. Before a file is opened, read, renamed or removed they check that
 * the path still leads to that directory. If it was moved, or a link was changed, another process
 * may hold the directory that the path leads to now, and its files must stay as they are. An open
 * journal checks it once a second: the next start would not find what is written to it elsewhere.
 */
export function lockedFiles(files: Files, place: LockPlace | undefined): Files {
  if (!place) return files
  return {
    makeDirectory: (path) => files.makeDirectory(path),
    list: (directory) => files.list(directory),
    async read(path, roomBytes) {
      await checkHeld(place)
      return files.read(path, roomBytes)
    },
    readStart: (path, lengthBytes) => files.readStart(path, lengthBytes),
    async open(path, mode) {
      await checkHeld(place)
      const file = await files.open(path, mode)
      return mode === 'durable' ? checkedFile(file, place) : file
    },
    async rename(from, to) {
      await checkHeld(place)
      return files.rename(from, to)
    },
    async remove(path) {
      await checkHeld(place)
      return files.remove(path)
    },
    syncDirectory: (path) => files.syncDirectory(path),
  }
}

function checkedFile(file: File, place: LockPlace): File {
  let checkedAtMs = performance.now()
  const check = async (): Promise<void> => {
    await checkHeld(place)
    checkedAtMs = performance.now()
  }
  return {
    write(bytes, at) {
      if (performance.now() - checkedAtMs < CHECK_EVERY_MS) return file.write(bytes, at)
      return check().then(() => file.write(bytes, at))
    },
    sync: () => file.sync(),
    truncate: (lengthBytes) => file.truncate(lengthBytes),
    close: () => file.close(),
  }
}
