/* SQLite as sql.js has it: loading it, its statements, and copying a database. */

import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { setImmediate as yieldTick } from 'node:timers/promises'
import type { Database, default as InitSqlJs, SqlJs, Statement, Value } from 'sql.js'
import { isError, reasonOf } from '../../../errors.ts'

let loaded: Promise<SqlJs> | undefined

/** SQLite, once for a thread: an early call lets it compile while other things start. */
export function loadSqlite(): Promise<SqlJs> {
  return (loaded ??= load().catch((cause: unknown) => {
    const cure = (isError(cause) && CURES.get(cause.name)) || INSTALL
    throw new Error(`SQLite cannot be loaded: ${reasonOf(cause)}; ${cure}`, { cause })
  }))
}

function load(): Promise<SqlJs> {
  return new Promise((resolve, reject) => {
    // `import` would scan this CommonJS module for its exports before it runs: 15 ms, a tenth of a
    // start.
    const require = createRequire(import.meta.url)
    const initSqlJs = require('sql.js') as typeof InitSqlJs
    const wasm = require.resolve('sql.js/dist/sql-wasm.wasm')
    const instantiate = async (imports: unknown): Promise<unknown> =>
      (await WebAssembly.instantiate(readFileSync(wasm), imports)).instance
    // Without it Emscripten ends the process if this fails, and prints its own source.
    const instantiateWasm = (imports: unknown, done: (instance: unknown) => void): void =>
      void instantiate(imports).then(done, reject)
    initSqlJs({ instantiateWasm }).then(resolve, reject)
  })
}

/** By the name of the error. */
const CURES: ReadonlyMap<string, string> = new Map([
  // The V8 of Node 20 reserves 10 GiB of addresses for WebAssembly, whatever it uses.
  ['RangeError', 'it reserves address space, which is not memory: lift ulimit -v or LimitAS='],
  ['ReferenceError', 'Node has no WebAssembly: start it without --jitless, also in NODE_OPTIONS'],
])
const INSTALL = 'a file of sql.js is missing, damaged or not readable: install this release again'

/** A prepared statement, and what is bound each time that it runs. */
export class Query {
  readonly #statement: Statement

  constructor(db: Database, sql: string) {
    this.#statement = db.prepare(sql)
  }

  /** The first row, or undefined. */
  first(values: readonly Value[] = []): Value[] | undefined {
    const statement = this.#statement
    statement.bind(values)
    const row = statement.step() ? statement.get() : undefined
    statement.reset()
    return row
  }

  /** All rows, until the caller takes no more. */
  *rows(values: readonly Value[] = []): Generator<Value[], void> {
    this.#statement.bind(values)
    try {
      while (this.#statement.step()) yield this.#statement.get()
    } finally {
      this.#statement.reset()
    }
  }
}

/**
 * The first column of the first row; undefined without a row. Not for what runs often: the
 * statement stays until the connection is closed.
 */
export function valueOf(db: Database, sql: string): Value | undefined {
  return new Query(db, sql).first()?.[0]
}

/** Longer texts are bound as bytes: sql.js copies strings character by character, 7 ms for 1 MB. */
const LONG_CHARS = 1024

/** A text as it is bound. Statements cast it to TEXT. */
export function bound(text: string | undefined): Value {
  if (text === undefined) return null
  return text.length < LONG_CHARS ? text : Buffer.from(text)
}

/** An id as it is bound. Statements cast it to INTEGER. As a number it is fast, if it is exact. */
export function boundId(id: string): Value {
  const number = Number(id)
  return Number.isSafeInteger(number) ? number : id
}

/** Long work yields after this long: a probe takes several ticks, and has a second for all. */
const YIELD_MS = 50

/** To be called after each piece of work. Returns a promise to wait for if it is time to yield. */
export function pausing(): () => Promise<void> | undefined {
  let yieldedAtMs = performance.now()
  return () => {
    if (performance.now() - yieldedAtMs < YIELD_MS) return undefined
    return yieldTick().then(() => void (yieldedAtMs = performance.now()))
  }
}

// Result codes (sqlite.org/rescode.html).
const OK = 0
const DONE = 101
/** 256 KiB in pages of 4096 bytes. */
const PAGES_A_STEP = 64

/** A schema of a connection: `main` is a file, `mem` is in memory. */
export type Schema = 'main' | 'mem'

/**
 * Makes a schema of a database the copy of another one's, page by page, with SQLite's backup API
 * (sqlite.org/c3ref/backup_finish.html). With `INSERT ... SELECT`, which copies cells, a start with
 * 1,000,000 plants took twice as long.
 * @throws Error if SQLite cannot read what is copied, or has no memory left.
 */
export async function copyPages(
  [from, source]: readonly [Database, Schema],
  [to, target]: readonly [Database, Schema],
): Promise<void> {
  const { cwrap } = await loadSqlite()
  const init = cwrap('sqlite3_backup_init', 'number', ['number', 'string', 'number', 'string'])
  const step = cwrap('sqlite3_backup_step', 'number', ['number', 'number'])
  const finish = cwrap('sqlite3_backup_finish', 'number', ['number'])

  const backup = init(to.db, target, from.db, source)
  const pause = pausing()
  let code = OK
  while (backup !== 0 && code === OK) {
    code = step(backup, PAGES_A_STEP)
    await pause()
  }
  finish(backup)
  if (code === DONE) return
  throw new Error(`SQLite could not copy the pages of a snapshot: result code ${code}`)
}
