import { setImmediate as yieldTick } from 'node:timers/promises'
import { errorCodeOf } from '../../errors.ts'
import type { Row } from './database.ts'
import { ASIDE, type Files } from './files.ts'
import {
  HEADER_MAX_BYTES,
  type JournalExtent,
  journalName,
  journalNumber,
  readHeader,
  readJournal,
  StoreCorrupt,
} from './journal.ts'
import { readSnapshot, SNAPSHOT, type Snapshot } from './snapshot.ts'

/**
 * A directory's files and how they fit together, with nothing but headers and the snapshot read.
 */
export interface DirectoryScan {
  readonly directory: string
  readonly snapshot: Snapshot | undefined
  /** Journals that hold something the snapshot does not, in order. */
  readonly journals: readonly number[]
  /**
   * The number for a new journal: behind all others, or that of a rotation which did not come to
   * its end.
   */
  readonly nextJournal: number
  /**
   * Files that are of no use any more: journals that the snapshot covers, and what a crash left
   * half written.
   */
  readonly obsoleteFiles: readonly string[]
}

/** The journal at the end of a replay. */
export interface LastJournal extends JournalExtent {
  readonly number: number
}

export interface Replay {
  /** The last sequence in the directory, 0 for an empty store. */
  readonly sequence: number
  /** The last journal, where there is one with a whole header. */
  readonly last: LastJournal | undefined
  /** How many groups were handed over. */
  readonly groups: number
  /** The length of the journals before it. */
  readonly closedBytes: number
}

/**
 * Looks at a directory and decides what is to be replayed, changing nothing.
 *
 * Removals reach the disk in any order, so any of the journals that a snapshot covers may still be
 * there. What must be there: with no snapshot, every journal from sequence 1 on; behind a snapshot,
 * the journal that begins right after it, unless the snapshot is `complete` and there is none. An
 * acknowledged plant is missing otherwise.
 * @throws StoreCorrupt naming file and byte.
 */
export async function scanDirectory(files: Files, directory: string): Promise<DirectoryScan> {
  const names = await files.list(directory)
  const numbers = names
    .map(journalNumber)
    .filter((n) => n !== undefined)
    .sort((a, b) => a - b)
  // The journals are looked at before the snapshot: one that a compaction removes in between is
  // then covered by it.
  const headers: { readonly number: number; readonly first: number | undefined }[] = []
  for (const number of numbers) {
    const name = journalName(number)
    headers.push({
      number,
      first: readHeader(
        `${directory}/${name}`,
        await files.readStart(`${directory}/${name}`, HEADER_MAX_BYTES),
      ),
    })
  }
  const snapshot = await readIfThere(files, `${directory}/${SNAPSHOT}`)
  const covered = snapshot?.sequence ?? 0
  const journals: number[] = []
  const obsoleteFiles = names.filter((name) => name.endsWith(ASIDE))
  headers.forEach(({ number, first }, i) => {
    const following = headers[i + 1]
    if (first === undefined) {
      if (!following) return
      throw new StoreCorrupt(
        `${directory}/${journalName(number)}`,
        0,
        'its first line is not whole, and a later journal follows',
      )
    }
    if (following?.first !== undefined && following.first <= covered + 1)
      obsoleteFiles.push(journalName(number))
    else journals.push(number)
  })
  const first = headers.find(({ number }) => number === journals[0])
  if (first?.first !== undefined && first.first > covered + 1) {
    throw new StoreCorrupt(
      `${directory}/${journalName(first.number)}`,
      0,
      `it begins with write ${first.first}, and what is before it ends with write ${covered}: a file is missing`,
    )
  }
  if (snapshot && !snapshot.complete && !headers.some((header) => header.first === covered + 1)) {
    throw new StoreCorrupt(
      `${directory}/${SNAPSHOT}`,
      snapshot.database.length,
      `the journal that begins with write ${covered + 1} is missing`,
    )
  }
  const end = headers.at(-1)
  return {
    directory,
    snapshot,
    journals,
    nextJournal: end === undefined ? 1 : end.first === undefined ? end.number : end.number + 1,
    obsoleteFiles,
  }
}

/**
 * Behind so much time, and again each time, a replay lets others run: a probe takes several turns,
 * and has a second.
 */
const TURN_MS = 50
/** How often it tells how far it is. */
const PROGRESS_MS = 1000

/**
 * Hands over every group behind the snapshot, in order. `onProgress` is told the number of groups
 * so far.
 * @throws StoreCorrupt naming file and byte; groups were handed over before it then.
 */
export async function replay(
  files: Files,
  found: DirectoryScan,
  onGroup: (rows: readonly Row[], sequence: number) => void,
  onProgress: (groups: number) => void = () => {},
): Promise<Replay> {
  const covered = found.snapshot?.sequence ?? 0
  let sequence = covered
  let last: LastJournal | undefined
  let closedBytes = 0
  let replayed = 0
  let toldAtMs = performance.now()
  let turnedAtMs = toldAtMs
  for (const [i, number] of found.journals.entries()) {
    const path = `${found.directory}/${journalName(number)}`
    const isLast = i === found.journals.length - 1 && number === found.nextJournal - 1
    const groups = readJournal(path, await files.read(path), isLast)
    let step = groups.next()
    for (; !step.done; step = groups.next()) {
      if (step.value.sequence <= covered) continue
      onGroup(step.value.rows(), step.value.sequence)
      replayed += 1
      const now = performance.now()
      if (now - turnedAtMs < TURN_MS) continue
      if (now - toldAtMs >= PROGRESS_MS) {
        onProgress(replayed)
        toldAtMs = now
      }
      await yieldTick()
      turnedAtMs = performance.now()
    }
    const extent = step.value
    if (i > 0 && extent.firstSequence !== sequence + 1) {
      throw new StoreCorrupt(
        path,
        0,
        `it begins with write ${extent.firstSequence}, and the journal before it ends with write ${sequence}`,
      )
    }
    sequence = Math.max(sequence, extent.nextSequence - 1)
    if (isLast) last = { ...extent, number }
    else closedBytes += extent.goodBytes
  }
  return { sequence, last, groups: replayed, closedBytes }
}

async function readIfThere(files: Files, path: string): Promise<Snapshot | undefined> {
  let bytes
  try {
    bytes = await files.read(path)
  } catch (error) {
    if (errorCodeOf(error) === 'ENOENT') return undefined
    throw error
  }
  return readSnapshot(path, bytes)
}
