import type { SqlJs } from 'sql.js'
import { loadSqlite } from './sqlite.ts'

export interface Meta {
  /** The last journal sequence that the file covers. */
  readonly sequence: number
  /** Whether the file holds everything by itself, with no journal after it. */
  readonly complete: boolean
}

export interface FileMeta extends Meta {
  /** The version of the snapshot's format. */
  readonly format: number
}

/** The `meta` table of a database file. @throws Error when the file is no such database. */
export function metaOf(library: SqlJs, bytes: Uint8Array): FileMeta {
  const db = new library.Database(bytes)
  try {
    const statement = db.prepare('SELECT key, value FROM meta')
    const values = new Map<unknown, unknown>()
    while (statement.step()) {
      const [key, value] = statement.get()
      values.set(key, value)
    }
    return {
      format: Number(values.get('format')),
      sequence: Number(values.get('sequence')),
      complete: values.get('complete') === 1,
    }
  } finally {
    db.close()
  }
}

/** As `metaOf`. @throws Error when the file is no such database. */
export async function readMeta(bytes: Uint8Array): Promise<FileMeta> {
  return metaOf(await loadSqlite(), bytes)
}
