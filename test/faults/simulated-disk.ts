import { createHash } from 'node:crypto'
import { dirname } from 'node:path'
import type { File, Files, Mode } from '../../dist/store/sqljs/files.js'

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

type Change =
  | { readonly kind: 'write'; readonly at: number; readonly bytes: Buffer; readonly state: State }
  | { readonly kind: 'truncate'; readonly lengthBytes: number; readonly state: State }

/** One change of a directory; `node` is the file or directory of that name. */
type Move =
  | { readonly kind: 'link'; readonly name: string; readonly node: number; readonly state: State }
  | {
      readonly kind: 'rename'
      readonly from: string
      readonly name: string
      readonly node: number
      readonly state: State
    }
  | { readonly kind: 'unlink'; readonly name: string; readonly state: State }

/** On the disk; not yet; or marked as clean by a failed sync, so that it is unknown. */
type State = 'synced' | 'dirty' | 'stuck'

interface FileNode {
  readonly kind: 'file'
  readonly base: Buffer
  readonly changes: readonly Change[]
}

interface DirectoryNode {
  readonly kind: 'directory'
  readonly base: ReadonlyMap<string, number>
  readonly changes: readonly Move[]
}

type Node = FileNode | DirectoryNode

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
  readonly #nodes: Map<number, Node>
  #nextNode: number

  private constructor(nodes: Map<number, Node>, nextNode: number) {
    this.#nodes = nodes
    this.#nextNode = nextNode
  }

  /** A disk with nothing but its root. */
  static empty(): SimulatedDisk {
    return new SimulatedDisk(
      new Map([[ROOT, { kind: 'directory', base: new Map(), changes: [] }]]),
      ROOT + 1,
    )
  }

  /** The same, page cache included: what a killed process leaves. */
  copy(): SimulatedDisk {
    return new SimulatedDisk(new Map(this.#nodes), this.#nextNode)
  }

  /** Every change that a power loss may undo, in the order of the fates for `afterPowerLoss`. */
  pending(): readonly Pending[] {
    return [...this.#nodes.values()].flatMap(({ base, changes }: Node) =>
      changes
        .filter(({ state }: Change | Move) => state !== 'synced')
        .map((change: Change | Move) => {
          if (change.kind !== 'write') return { lengthBytes: 0, textBytes: 0, inPlace: false }
          return {
            lengthBytes: change.bytes.length,
            textBytes: textLength(change.bytes),
            inPlace: Buffer.isBuffer(base) && change.at + change.bytes.length <= base.length,
          }
        }),
    )
  }

  /** What is on the disk when the power comes back. */
  afterPowerLoss(fates: readonly Fate[]): SimulatedDisk {
    let next = 0
    const fateOf = ({ state }: Change | Move): Fate =>
      state === 'synced' ? 'kept' : (fates[next++] ?? 'lost')
    const nodes = new Map<number, Node>()
    for (const [id, node] of this.#nodes) {
      if (node.kind === 'file') {
        const base = node.changes.reduce(
          (bytes, change) => changed(bytes, change, fateOf(change)),
          node.base,
        )
        nodes.set(id, { kind: 'file', base, changes: [] })
      } else {
        const base = node.changes.reduce(
          (names, move) => (fateOf(move) === 'lost' ? names : moved(names, move)),
          node.base,
        )
        nodes.set(id, { kind: 'directory', base, changes: [] })
      }
    }
    return new SimulatedDisk(nodes, this.#nextNode)
  }

  /** Names and contents of all files. */
  describe(contentOf = (bytes: Buffer) => bytes.toString('base64'), directory = ROOT): string {
    return [...this.#names(directory)]
      .toSorted(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, id]) => {
        const isDirectory = this.#nodes.get(id)?.kind === 'directory'
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
        id = this.#nodes.get(id)?.kind === 'directory' ? this.#names(id).get(part) : undefined
    return id
  }

  names(directory: string): string[] {
    return [...this.#names(this.#must(directory))].map(([name]) => name)
  }

  read(id: number): Buffer {
    return Buffer.from(this.#content(id))
  }

  /** Makes a directory, and those above it, unless they exist. */
  makeDirectory(path: string): void {
    if (this.find(path) !== undefined) return
    this.makeDirectory(dirname(path))
    this.#link(path, { kind: 'directory', base: new Map(), changes: [] })
  }

  createOrEmpty(path: string): number {
    const there = this.find(path)
    if (there === undefined)
      return this.#link(path, { kind: 'file', base: Buffer.alloc(0), changes: [] })
    this.truncate(there, 0)
    return there
  }

  write(id: number, bytes: Uint8Array, at: number): void {
    this.#change(id, { kind: 'write', at, bytes: Buffer.from(bytes), state: 'dirty' })
  }

  truncate(id: number, lengthBytes: number): void {
    this.#change(id, { kind: 'truncate', lengthBytes, state: 'dirty' })
  }

  sync(id: number, state: 'synced' | 'stuck' = 'synced'): void {
    const node = this.#nodes.get(id)
    const mark = <T extends Change | Move>(change: T): T =>
      change.state === 'dirty' ? { ...change, state } : change
    if (node?.kind === 'file') this.#nodes.set(id, settledFile(node.base, node.changes.map(mark)))
    if (node?.kind === 'directory')
      this.#nodes.set(id, settledDirectory(node.base, node.changes.map(mark)))
  }

  syncDirectory(path: string): void {
    this.sync(this.#must(path))
  }

  rename(from: string, to: string): void {
    this.#move(from, {
      kind: 'rename',
      from: nameOf(from),
      name: nameOf(to),
      node: this.#must(from),
      state: 'dirty',
    })
  }

  remove(path: string): void {
    this.#must(path)
    this.#move(path, { kind: 'unlink', name: nameOf(path), state: 'dirty' })
  }

  #must(path: string): number {
    const id = this.find(path)
    if (id === undefined) throw systemError('ENOENT', path)
    return id
  }

  #file(id: number): FileNode {
    const node = this.#nodes.get(id)
    if (node?.kind !== 'file') throw systemError('EISDIR', String(id))
    return node
  }

  #names(id: number): ReadonlyMap<string, number> {
    const node = this.#nodes.get(id)
    if (node?.kind !== 'directory') throw systemError('ENOTDIR', String(id))
    return node.changes.reduce(moved, node.base)
  }

  #link(path: string, node: Node): number {
    const id = this.#nextNode++
    this.#move(path, { kind: 'link', name: nameOf(path), node: id, state: 'dirty' })
    this.#nodes.set(id, node)
    return id
  }

  #move(path: string, move: Move): void {
    const id = this.#must(dirname(path))
    const node = this.#nodes.get(id)
    if (node?.kind === 'directory')
      this.#nodes.set(id, { ...node, changes: [...node.changes, move] })
  }

  #content(id: number): Buffer {
    const { base, changes } = this.#file(id)
    return changes.reduce((bytes, change) => changed(bytes, change, 'kept'), base)
  }

  #change(id: number, change: Change): void {
    const node = this.#file(id)
    this.#nodes.set(id, { ...node, changes: [...node.changes, change] })
  }
}

/** By the bytes: most files are those of the disk before. */
const digests = new WeakMap<Buffer, string>()

function digestOf(bytes: Buffer): string {
  const known = digests.get(bytes) ?? createHash('sha1').update(bytes).digest('base64')
  digests.set(bytes, known)
  return known
}

function nameOf(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1)
}

function settledFile(base: Buffer, changes: readonly Change[]): FileNode {
  if (changes.some(({ state }) => state !== 'synced')) return { kind: 'file', base, changes }
  return {
    kind: 'file',
    base: changes.reduce((bytes, change) => changed(bytes, change, 'kept'), base),
    changes: [],
  }
}

function settledDirectory(
  base: ReadonlyMap<string, number>,
  changes: readonly Move[],
): DirectoryNode {
  if (changes.some(({ state }) => state !== 'synced')) return { kind: 'directory', base, changes }
  return { kind: 'directory', base: changes.reduce(moved, base), changes: [] }
}

function changed(bytes: Buffer, change: Change, fate: Fate): Buffer {
  if (fate === 'lost') return bytes
  if (change.kind === 'truncate') return resized(bytes, change.lengthBytes)
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

function moved(names: ReadonlyMap<string, number>, move: Move): ReadonlyMap<string, number> {
  const next = new Map(names)
  if (move.kind === 'rename' && next.get(move.from) === move.node) next.delete(move.from)
  if (move.kind === 'unlink') next.delete(move.name)
  else next.set(move.name, move.node)
  return next
}

export function systemError(code: string, what: string): Error {
  return Object.assign(new Error(`${code}: ${what}`), { code })
}

/** One call of `Files` or `File`: the name of its method and its path. */
export interface DiskCall {
  readonly name:
    | 'makeDirectory'
    | 'list'
    | 'read'
    | 'open'
    | 'rename'
    | 'remove'
    | 'syncDirectory'
    | 'write'
    | 'writeNow'
    | 'readNow'
    | 'syncNow'
    | 'lengthBytes'
    | 'sync'
    | 'truncate'
    | 'close'
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

export interface Observer {
  /** Called before each call; may make it fail. `onWriting`: during an O_DSYNC write. */
  onCall(call: DiskCall): Fault | undefined
  onWriting(): void
}

const NO_FAULTS: Observer = { onCall: () => undefined, onWriting: () => {} }

/** The store's file access over a simulated disk. */
export function simulatedFiles(disk: SimulatedDisk, observer = NO_FAULTS): Files {
  /** Throws if the call is refused. Returns the fault if it fails in another way. */
  function beginNow(name: DiskCall['name'], path: string, mode?: Mode): Fault | undefined {
    const fault = observer.onCall({ name, path, mode })
    if (fault?.how === 'refused') throw systemError(fault.code, `${name} ${path}`)
    return fault
  }

  /** As `beginNow`, later. */
  async function begin(
    name: DiskCall['name'],
    path: string,
    mode?: Mode,
  ): Promise<Fault | undefined> {
    const fault = observer.onCall({ name, path, mode })
    // Others go on during a real call.
    await Promise.resolve()
    if (fault?.how === 'refused') throw systemError(fault.code, `${name} ${path}`)
    return fault
  }

  function fileAt(id: number, path: string, mode: Mode): File {
    return {
      async write(bytes, at) {
        const fault = await begin('write', path, mode)
        const taken = fault?.how === 'short' ? Math.floor(bytes.length / 2) : bytes.length
        disk.write(id, bytes.subarray(0, taken), at)
        if (mode !== 'durable') return taken
        observer.onWriting()
        disk.sync(id, fault?.how === 'unsynced' ? 'stuck' : 'synced')
        if (fault?.how === 'unsynced') throw systemError(fault.code, `write ${path}`)
        return taken
      },
      writeNow(bytes, at) {
        const fault = beginNow('writeNow', path, mode)
        const taken = fault?.how === 'short' ? Math.floor(bytes.length / 2) : bytes.length
        disk.write(id, bytes.subarray(0, taken), at)
        return taken
      },
      readNow(bytes, at) {
        beginNow('readNow', path, mode)
        return disk.read(id).copy(bytes, 0, at)
      },
      syncNow() {
        const fault = beginNow('syncNow', path, mode)
        disk.sync(id, fault ? 'stuck' : 'synced')
        if (fault) throw systemError(fault.code, `syncNow ${path}`)
      },
      async lengthBytes() {
        await begin('lengthBytes', path, mode)
        return disk.read(id).length
      },
      async sync() {
        const fault = await begin('sync', path, mode)
        disk.sync(id, fault ? 'stuck' : 'synced')
        if (fault) throw systemError(fault.code, `sync ${path}`)
      },
      async truncate(lengthBytes) {
        await begin('truncate', path, mode)
        disk.truncate(id, lengthBytes)
      },
      async close() {
        await begin('close', path, mode)
      },
    }
  }

  return {
    async makeDirectory(path) {
      await begin('makeDirectory', path)
      disk.makeDirectory(path)
    },
    async list(directory) {
      await begin('list', directory)
      return disk.names(directory)
    },
    async read(path, maxBytes) {
      await begin('read', path)
      return disk.read(found(path)).subarray(0, maxBytes)
    },
    async open(path, mode) {
      await begin('open', path, mode)
      return fileAt(mode === 'temporary' ? disk.createOrEmpty(path) : found(path), path, mode)
    },
    async rename(from, to) {
      await begin('rename', to)
      disk.rename(from, to)
    },
    async remove(path) {
      await begin('remove', path)
      disk.remove(path)
    },
    async syncDirectory(path) {
      await begin('syncDirectory', path)
      disk.syncDirectory(path)
    },
  }

  function found(path: string): number {
    const id = disk.find(path)
    if (id === undefined) throw systemError('ENOENT', path)
    return id
  }
}
