import { createHash } from 'node:crypto'
import { basename, dirname } from 'node:path'
import type { File, Files, Mode } from '../../dist/store/sqljs/disk/files.js'

/*
 * A disk that loses what was not synced, and the page cache before it, which a kill leaves alone.
 *
 * - Every reader sees a write or a truncation at once. It is on the disk after a successful sync of
 *   the file. Until then a power loss may keep it as a whole, in part (any pieces of it; the rest
 *   is as before, or zeros after the end), or not at all, and later ones without earlier ones. A
 *   write to a file opened `durable` (O_DSYNC) includes the sync.
 * - A failed sync makes nothing durable and marks its changes as clean: readers still see them, no
 *   later sync writes them, and it stays unknown whether they are on the disk.
 * - Creating a file, making a directory, renaming and removing change names at once. They are on
 *   the disk after a sync of their directory. Until then a power loss may keep each of them or not,
 *   independently; a rename happens as a whole. A failed directory sync leaves them so, and a later
 *   one can make them durable: file systems that cannot write their own journal stop.
 * - A kill loses nothing. A power loss loses what is not on the disk.
 */

/** On the disk; not yet; or marked as clean by a failed sync, so that it is unknown. */
type State = 'synced' | 'dirty' | 'stuck'

/** A file of bytes, or a directory of names. */
interface Node<Base, Change> {
  /** What is on the disk, and what readers see: all changes are in it. */
  readonly base: Base
  readonly now: Base
  readonly changes: readonly (Change & { readonly state: State })[]
}

/** By their ids. */
type Nodes<Base, Change> = Map<number, Node<Base, Change>>

/** A write, or a truncation. */
type Change = { readonly at: number; readonly bytes: Buffer } | { readonly lengthBytes: number }
/** Id of each file or directory. */
type Names = ReadonlyMap<string, number>
/** A name goes, another one comes, or both: a rename. */
interface Move {
  readonly from?: string
  readonly name?: string
  readonly node: number
}

/** What a power loss leaves of one change: all, nothing, or these pieces of a write. */
export type Fate = 'kept' | 'lost' | readonly { readonly from: number; readonly to: number }[]

/** A change that is not certainly on the disk. */
export interface Pending {
  /** How many bytes a write has; 0 for anything else. */
  readonly lengthBytes: number
  /** How many of them come before the zeros at its end. */
  readonly textBytes: number
  /** Whether a write makes no file longer. */
  readonly inPlace: boolean
}

const ROOT = 0

export class SimulatedDisk {
  readonly #files: Nodes<Buffer, Change>
  readonly #directories: Nodes<Names, Move>
  #nextNode: number

  private constructor(files: Nodes<Buffer, Change>, directories: Nodes<Names, Move>, next: number) {
    this.#files = files
    this.#directories = directories
    this.#nextNode = next
  }

  /** A disk with nothing but its root. */
  static empty(): SimulatedDisk {
    return new SimulatedDisk(new Map(), new Map([[ROOT, unchanged(new Map())]]), ROOT + 1)
  }

  /** The same, page cache included: what a killed process leaves. */
  copy(): SimulatedDisk {
    return new SimulatedDisk(new Map(this.#files), new Map(this.#directories), this.#nextNode)
  }

  /** Every change that a power loss may undo, in the order of the fates for `afterPowerLoss`. */
  pending(): readonly Pending[] {
    const isPending = ({ state }: { readonly state: State }): boolean => state !== 'synced'
    const none = { lengthBytes: 0, textBytes: 0, inPlace: false }
    return [
      ...[...this.#files.values()].flatMap(({ base, changes }) =>
        changes.filter(isPending).map((change) => {
          if (!('bytes' in change)) return none
          const { at, bytes } = change
          const inPlace = at + bytes.length <= base.length
          return { lengthBytes: bytes.length, textBytes: textLength(bytes), inPlace }
        }),
      ),
      ...[...this.#directories.values()].flatMap(({ changes }) =>
        changes.filter(isPending).map(() => none),
      ),
    ]
  }

  /** What is on the disk when the power comes back. */
  afterPowerLoss(fates: readonly Fate[]): SimulatedDisk {
    let next = 0
    const fateOf = ({ state }: { readonly state: State }): Fate =>
      state === 'synced' ? 'kept' : (fates[next++] ?? 'lost')
    const lost = <B, C>(nodes: Nodes<B, C>, apply: Apply<B, C>): Nodes<B, C> => {
      const left = ({ base, changes }: Node<B, C>): B =>
        changes.reduce((before, change) => apply(before, change, fateOf(change)), base)
      return new Map([...nodes].map(([id, node]) => [id, unchanged(left(node))]))
    }
    const files = lost(this.#files, changed)
    return new SimulatedDisk(files, lost(this.#directories, moved), this.#nextNode)
  }

  /** Names and contents of all files. */
  describe(contentOf = (bytes: Buffer) => bytes.toString('base64'), directory = ROOT): string {
    return [...this.#names(directory)]
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, id]) => {
        const isDirectory = this.#directories.has(id)
        const inside = isDirectory ? this.describe(contentOf, id) : contentOf(this.#content(id))
        return `${name}{${inside}}`
      })
      .join()
  }

  /** Tells states apart. */
  digest(): string {
    return this.describe(digestOf)
  }

  find(path: string): number | undefined {
    let id: number | undefined = ROOT
    for (const part of path.split('/').slice(1))
      if (part !== '' && id !== undefined)
        id = this.#directories.has(id) ? this.#names(id).get(part) : undefined
    return id
  }

  names(directory: string): string[] {
    return [...this.#names(this.must(directory)).keys()]
  }

  /** A copy of some bytes of a file. */
  read(id: number, from = 0, to = Infinity): Buffer {
    return Buffer.from(this.#content(id).subarray(from, to))
  }

  /** Makes a directory, and those above it, unless they exist. */
  makeDirectory(path: string): void {
    if (this.find(path) !== undefined) return
    this.makeDirectory(dirname(path))
    this.#directories.set(this.#link(path), unchanged(new Map()))
  }

  createOrEmpty(path: string): number {
    const there = this.find(path)
    if (there !== undefined) this.truncate(there, 0)
    const id = there ?? this.#link(path)
    if (there === undefined) this.#files.set(id, unchanged(Buffer.alloc(0)))
    return id
  }

  write(id: number, bytes: Uint8Array, at: number): void {
    this.#change(id, { at, bytes: Buffer.from(bytes) })
  }

  truncate(id: number, lengthBytes: number): void {
    this.#change(id, { lengthBytes })
  }

  sync(id: number, state: State = 'synced'): void {
    const [file, directory] = [this.#files.get(id), this.#directories.get(id)]
    if (file) this.#files.set(id, marked(file, state))
    if (directory) this.#directories.set(id, marked(directory, state))
  }

  syncDirectory(path: string): void {
    this.sync(this.must(path))
  }

  rename(from: string, to: string): void {
    this.#move(from, { from: basename(from), name: basename(to), node: this.must(from) })
  }

  remove(path: string): void {
    this.#move(path, { from: basename(path), node: this.must(path) })
  }

  /** The file or directory of a path. @throws ENOENT. */
  must(path: string): number {
    const id = this.find(path)
    if (id === undefined) throw systemError('ENOENT', path)
    return id
  }

  #file(id: number): Node<Buffer, Change> {
    const file = this.#files.get(id)
    if (!file) throw systemError('EISDIR', String(id))
    return file
  }

  #directory(id: number): Node<Names, Move> {
    const directory = this.#directories.get(id)
    if (!directory) throw systemError('ENOTDIR', String(id))
    return directory
  }

  #names(id: number): Names {
    return this.#directory(id).now
  }

  #content(id: number): Buffer {
    return this.#file(id).now
  }

  /** A new node's id, with its name. */
  #link(path: string): number {
    const node = this.#nextNode++
    this.#move(path, { name: basename(path), node })
    return node
  }

  #move(path: string, move: Move): void {
    const id = this.must(dirname(path))
    this.#directories.set(id, withChange(this.#directory(id), move, moved))
  }

  #change(id: number, change: Change): void {
    this.#files.set(id, withChange(this.#file(id), change, changed))
  }
}

/** By the bytes: most files are those of the disk before. */
const digests = new WeakMap<Buffer, string>()

function digestOf(bytes: Buffer): string {
  const known = digests.get(bytes) ?? createHash('sha1').update(bytes).digest('base64')
  digests.set(bytes, known)
  return known
}

type Apply<Base, Change> = (base: Base, change: Change, fate: Fate) => Base

function unchanged<Base, Change>(base: Base): Node<Base, Change> {
  return { base, now: base, changes: [] }
}

function withChange<Base, Change>(
  { base, now, changes }: Node<Base, Change>,
  change: Change,
  apply: Apply<Base, Change>,
): Node<Base, Change> {
  const all = [...changes, { ...change, state: 'dirty' as const }]
  return { base, now: apply(now, change, 'kept'), changes: all }
}

/** A node after a sync: once all of its changes are on the disk, they are in its base. */
function marked<Base, Change>(node: Node<Base, Change>, state: State): Node<Base, Change> {
  const changes = node.changes.map((each) => (each.state === 'dirty' ? { ...each, state } : each))
  return changes.some((each) => each.state !== 'synced')
    ? { ...node, changes }
    : unchanged(node.now)
}

function changed(bytes: Buffer, change: Change, fate: Fate): Buffer {
  if (fate === 'lost') return bytes
  if (!('bytes' in change)) return resized(bytes, change.lengthBytes)
  const pieces = fate === 'kept' ? [{ from: 0, to: change.bytes.length }] : fate
  const grown = resized(bytes, Math.max(bytes.length, ...pieces.map(({ to }) => change.at + to)))
  for (const { from, to } of pieces) change.bytes.copy(grown, change.at + from, from, to)
  return grown
}

/** The length without zeros at the end. */
export function textLength(bytes: Uint8Array): number {
  let length = bytes.length
  while (length > 0 && bytes[length - 1] === 0) length -= 1
  return length
}

function resized(bytes: Buffer, lengthBytes: number): Buffer {
  const sized = Buffer.alloc(lengthBytes)
  bytes.copy(sized)
  return sized
}

function moved(names: Names, { from, name, node }: Move, fate: Fate): Names {
  if (fate === 'lost') return names
  const next = new Map(names)
  // A rename that is kept alone: another file may have the old name by now.
  if (from !== undefined && (name === undefined || next.get(from) === node)) next.delete(from)
  if (name !== undefined) next.set(name, node)
  return next
}

export function systemError(code: string, what: string): Error {
  return Object.assign(new Error(`${code}: ${what}`), { code })
}

/** One call of `Files` or `File`: the name of its method and its path. */
export interface DiskCall {
  readonly name: keyof Files | keyof File
  readonly path: string
  readonly mode: Mode | undefined
}

/**
 * How a call fails: before it did anything, after a write took half, or after a write that could
 * not be synced.
 */
export interface Fault {
  readonly code: string
  readonly how: 'refused' | 'short' | 'unsynced'
}

export const REFUSED: Fault = { code: 'EIO', how: 'refused' }
export const UNSYNCED: Fault = { code: 'EIO', how: 'unsynced' }
export const NO_SPACE: Fault = { code: 'ENOSPC', how: 'refused' }
export const UNSYNCED_FULL: Fault = { code: 'ENOSPC', how: 'unsynced' }
export const SHORT: Fault = { code: '', how: 'short' }

/** In which ways a call may fail. */
export function faultsOf(name: DiskCall['name']): readonly Fault[] {
  if (name === 'write') return [REFUSED, UNSYNCED, NO_SPACE, UNSYNCED_FULL, SHORT]
  return [name === 'sync' ? UNSYNCED : REFUSED, NO_SPACE]
}

export interface Observer {
  /** Called before each call; may make it fail. `onWriting`: during an O_DSYNC write. */
  onCall(call: DiskCall): Fault | undefined
  onWriting?(): void
}

/** The store's file access over a simulated disk. */
export function simulatedFiles(
  disk: SimulatedDisk,
  observer: Observer = { onCall: () => undefined },
): Files {
  /** Throws if the call is refused. Returns the fault if it fails in another way. */
  function begin(name: DiskCall['name'], path: string, mode?: Mode): Fault | undefined {
    const fault = observer.onCall({ name, path, mode })
    if (fault?.how === 'refused') throw systemError(fault.code, `${name} ${path}`)
    return fault
  }

  /** As `begin`. Others go on during a real call. */
  async function later(...call: Parameters<typeof begin>): Promise<Fault | undefined> {
    const fault = begin(...call)
    await Promise.resolve()
    return fault
  }

  function fileAt(id: number, path: string, mode: Mode): File {
    const put = (bytes: Uint8Array, at: number, fault: Fault | undefined): number => {
      const taken = fault?.how === 'short' ? Math.floor(bytes.length / 2) : bytes.length
      disk.write(id, bytes.subarray(0, taken), at)
      return taken
    }
    const sync = (name: DiskCall['name'], fault: Fault | undefined): void => {
      disk.sync(id, fault ? 'stuck' : 'synced')
      if (fault) throw systemError(fault.code, `${name} ${path}`)
    }
    return {
      async write(bytes, at) {
        const fault = await later('write', path, mode)
        const taken = put(bytes, at, fault)
        const unsynced = fault?.how === 'unsynced' ? fault : undefined
        if (mode === 'durable') observer.onWriting?.()
        if (mode === 'durable' || unsynced) sync('write', unsynced)
        return taken
      },
      writeNow: (bytes, at) => put(bytes, at, begin('writeNow', path, mode)),
      async read(bytes, at) {
        await later('read', path, mode)
        return disk.read(id, at, at + bytes.length).copy(bytes)
      },
      readNow(bytes, at) {
        begin('readNow', path, mode)
        return disk.read(id, at, at + bytes.length).copy(bytes)
      },
      syncNow: () => sync('syncNow', begin('syncNow', path, mode)),
      async lengthBytes() {
        await later('lengthBytes', path, mode)
        return disk.read(id).length
      },
      sync: async () => sync('sync', await later('sync', path, mode)),
      async truncate(lengthBytes) {
        await later('truncate', path, mode)
        disk.truncate(id, lengthBytes)
      },
      close: async () => void (await later('close', path, mode)),
    }
  }

  return {
    async makeDirectory(path) {
      await later('makeDirectory', path)
      disk.makeDirectory(path)
    },
    async list(directory) {
      await later('list', directory)
      return disk.names(directory)
    },
    async open(path, mode) {
      await later('open', path, mode)
      return fileAt(mode === 'temporary' ? disk.createOrEmpty(path) : disk.must(path), path, mode)
    },
    async rename(from, to) {
      await later('rename', to)
      disk.rename(from, to)
    },
    async remove(path) {
      await later('remove', path)
      if (disk.find(path) !== undefined) disk.remove(path)
    },
    async syncDirectory(path) {
      await later('syncDirectory', path)
      disk.syncDirectory(path)
    },
  }
}
