/**
 * What this folder uses of sql.js 1.16. The published types know neither that a bigint may be
 * bound, nor SQLite's own functions.
 */
declare module 'sql.js' {
  export type Value = string | number | bigint | Uint8Array | null

  /** What sql.js uses of the bytes of a file. A Buffer has all of it. */
  export interface FileBytes {
    /** Their length when they are taken; later, how long the file may become in their place. */
    readonly length: number
    /** Called once, when they are taken: returns them, not a copy. */
    slice(from: number, to: number): FileBytes
    /** Returns bytes for SQLite to read. */
    subarray(from: number, to: number): Uint8Array
    /** Takes bytes that SQLite writes. */
    set(bytes: Uint8Array, at: number): void
  }

  export interface Statement {
    bind(values: readonly Value[]): boolean
    /** True while there is a row. */
    step(): boolean
    /** The current row's columns. An integer above 2^53 is not exact. */
    get(): Value[]
    reset(): boolean
    free(): boolean
  }

  export interface Database {
    /** The address of SQLite's connection. */
    readonly db: number
    /** Runs statements that return no rows. */
    run(sql: string): Database
    prepare(sql: string): Statement
    /** The main database as a file's bytes. Finalizes nothing, copies everything. */
    export(): Uint8Array
    close(): void
  }

  export interface SqlJs {
    readonly Database: new (bytes?: FileBytes) => Database
    /** One of SQLite's C functions that sql.js has compiled in. */
    cwrap(
      name: string,
      returns: 'number',
      parameters: readonly ('number' | 'string')[],
    ): (...values: readonly (number | string)[]) => number
  }

  /** https://emscripten.org/docs/api_reference/module.html#Module.instantiateWasm */
  interface Module {
    readonly instantiateWasm: (imports: unknown, done: (instance: unknown) => void) => void
  }

  export default function initSqlJs(module?: Module): Promise<SqlJs>
}

/** The one function of it that this folder uses. Node's types do not have the global. */
declare namespace WebAssembly {
  function instantiate(bytes: Uint8Array, imports: unknown): Promise<{ readonly instance: unknown }>
}
