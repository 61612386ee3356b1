import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import type { Database, default as InitSqlJs, SqlJs, Statement, Value } from 'sql.js'
import { isError, reasonOf } from '../../errors.ts'
import { pausing } from './pausing.ts'

/* SQLite as sql.js has it: loading it, its statements, and copying a database. */

/** Instances that no store has. A store that has been closed leaves its instance to the next. */
const unused = new Set<Promise<SqlJs>>()

/** SQLite for a short use. An early call lets it compile while other things start. */
export function loadSqlite(): Promise<SqlJs> {
  const [first = ownSqlite()] = unused
  unused.add(first)
  // The next call tries again.
  first.catch(() => unused.delete(first))
  return first
}

/** SQLite for one store: another store of this process must not exhaust its memory. */
export function takeSqlite(): Promise<SqlJs> {
  const taken = loadSqlite()
  unused.delete(taken)
  return taken
}

export function returnSqlite(taken: Promise<SqlJs>): void {
  unused.add(taken)
}

/**
 * SQLite with memory of its own, for a file of any origin: what such a file exhausts or damages is
 * only this. sql.js makes one instance for each time that it is loaded.
 */
export function ownSqlite(): Promise<SqlJs> {
  // A new one each time: it keeps all that it has loaded. `import` would scan this CommonJS module
  // for its exports before it runs: 15 ms, a tenth of a start.
  const require = createRequire(import.meta.url)
  delete require.cache[require.resolve('sql.js')]
  const initSqlJs = require('sql.js') as typeof InitSqlJs
  const wasm = require.resolve('sql.js/dist/sql-wasm.wasm')
  return new Promise((resolve, reject) => {
    const fail = (cause: unknown): void => reject(new Error(whyNotLoaded(cause), { cause }))
    const instantiate = async (imports: unknown): Promise<unknown> =>
      (await WebAssembly.instantiate(readFileSync(wasm), imports)).instance
    // Without it Emscripten ends the process if this fails, and prints its own source.
    const instantiateWasm = (imports: unknown, done: (instance: unknown) => void): void =>
      void instantiate(imports).then(done, fail)
    initSqlJs({ instantiateWasm }).then(resolve, fail)
  })
}

function whyNotLoaded(cause: unknown): string {
  const what = `SQLite cannot be loaded: ${reasonOf(cause)}`
  // V8 reserves 10 GiB of addresses for WebAssembly, whatever it uses.
  const isLimited = isError(cause) && cause.name === 'RangeError'
  const cure = 'it reserves address space, which is not memory: lift ulimit -v or LimitAS='
  return isLimited ? `${what}; ${cure}` : what
}

/** A prepared statement, and what is bound each time that it runs. */
export class Query {
  readonly #statement: Statement

  constructor(db: Database, sql: string) {
    this.#statement = db.prepare(sql)
  }

  run(values: readonly Value[]): void {
    this.first(values)
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
  *rows(values: readonly Value[]): Generator<Value[], void> {
    this.#statement.bind(values)
    try {
      while (this.#statement.step()) yield this.#statement.get()
    } finally {
      this.#statement.reset()
    }
  }
}

/** The first column of the first row; undefined without a row. */
export function valueOf(db: Database, sql: string): Value | undefined {
  const statement = db.prepare(sql)
  statement.step()
  const [value] = statement.get()
  statement.free()
  return value
}

// Result codes (sqlite.org/rescode.html).
const OK = 0
const DONE = 101
/** 256 KiB in pages of 4096 bytes. */
const PAGES_A_STEP = 64

/**
 * Makes one schema of a database the copy of another database, page by page, with SQLite's backup
 * API (sqlite.org/c3ref/backup_finish.html). With `INSERT ... SELECT`, which copies cells, a start
 * with 1,000,000 plants took twice as long.
 * @throws Error if SQLite cannot read what is copied, or has no memory left.
 */
export async function copyPages(
  { cwrap }: SqlJs,
  from: Database,
  to: Database,
  schema: string,
): Promise<void> {
  const init = cwrap('sqlite3_backup_init', 'number', ['number', 'string', 'number', 'string'])
  const step = cwrap('sqlite3_backup_step', 'number', ['number', 'number'])
  const finish = cwrap('sqlite3_backup_finish', 'number', ['number'])

  const backup = init(to.db, schema, from.db, 'main')
  if (backup === 0) throw failed('no backup could begin')
  const pause = pausing()
  let code = OK
  while (code === OK) {
    code = step(backup, PAGES_A_STEP)
    await pause()
  }
  finish(backup)
  if (code !== DONE) throw failed(`result code ${code}`)
}

function failed(why: string): Error {
  return new Error(`SQLite could not copy the pages of a snapshot: ${why}`)
}
