import type { Files } from './files.ts'
import { checkHeld, type LockPlace } from './lock.ts'

/**
 * Files of a locked directory. Before each new, renamed or removed file they check that the path
 * still leads to that directory. If it was moved, or a link was changed, another process may hold
 * the directory that the path leads to now, and its files must stay as they are. Files that are
 * open already are written to wherever they are.
 */
export function lockedFiles(files: Files, place: LockPlace | undefined): Files {
  if (!place) return files
  return {
    makeDirectory: (path) => files.makeDirectory(path),
    list: (directory) => files.list(directory),
    read: (path, roomBytes) => files.read(path, roomBytes),
    readStart: (path, lengthBytes) => files.readStart(path, lengthBytes),
    async open(path, mode) {
      await checkHeld(place)
      return files.open(path, mode)
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
